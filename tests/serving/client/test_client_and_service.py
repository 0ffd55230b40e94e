"""The client and the service that it is made for, over a real socket."""

from pathlib import Path

import pytest
import uvicorn

from serving.client.client import Client, ServiceError
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.served import served
from tests.support.worlds.serving import save_towers, write_world


def test_the_client_speaks_to_the_service(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    settings = Settings(bundle=tmp_path / "bundle", state=tmp_path / "state")
    with served(uvicorn.Config(create_app(settings), port=0, log_config=None)) as url, Client(url) as client:
        assert client.ready()
        answer = client.recall(user_id="u5", k=3, exclude=["i9"])
        assert ([item_id for item_id, _ in answer.items], answer.source) == (["i13", "i17", "i21"], "user")
        client.put_item("a/b", {"group": "g2", "place": 5}, {})
        assert client.recall(vector=[0, 0, 1, 0, 0, 0, 0, 1], k=1).items[0][0] == "a/b"
        assert client.add_events([{"id": "e1", "user_id": "u2", "item_id": "a/b", "time": 1_700_000_000}] * 2) == 1
        batch = client.recall_batch([{"user_id": "u2", "k": 1}, {"features": {"country": "g2"}, "k": 1}])
        assert [answer.items[0][0] == "a/b" for answer in batch] == [False, True], "u2 has seen it"
        client.delete_item("a/b")
        assert client.similar(["i1"], k=1).items[0][0] == "i5"
        assert len(client.embed([{"user_id": "u5"}]).vectors[0]) == 8
        with pytest.raises(ServiceError, match="must be at least 1") as raised:
            client.recall(k=0)
        assert (raised.value.status, raised.value.field) == (422, "k")
