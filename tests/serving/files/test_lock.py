"""A lock makes its directory, but never again one that another command made and removed."""

from pathlib import Path

import pytest

from serving.files.lock import BusyError, exclusive


def test_a_directory_is_made_to_be_locked_unless_another_command_made_it(tmp_path: Path) -> None:
    place = tmp_path / "new" / "work"
    with pytest.raises(FileNotFoundError) as error, exclusive(place, "busy", create=False):
        pass
    assert str(error.value) == f"[Errno 2] No such file or directory: '{place}'"
    assert not place.parent.exists()
    with exclusive(place, "busy"):
        for create in (True, False):
            with pytest.raises(BusyError, match=r"^busy$"), exclusive(place, "busy", create=create):
                pass
    with exclusive(place, "busy", create=False):
        assert list(place.iterdir()) == []
