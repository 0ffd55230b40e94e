"""Of each user the newest events are held, however they come in; the rest still counts for the items."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.catalogue.user_events import Taken, UserEvents

batches = st.lists(
    st.lists(st.tuples(st.sampled_from(["u", "v"]), st.sampled_from("abc"), st.integers(0, 5)), max_size=6), max_size=6
)


@given(batches=batches, most=st.integers(1, 5))
def test_the_newest_of_each_user_are_held(batches: list[list[tuple[str, str, int]]], most: int) -> None:
    users, every = UserEvents(most), []
    for batch in batches:
        numbered = [(len(every) + place, *event) for place, event in enumerate(batch)]
        users.apply([(user, Taken(time, seq, item, "event")) for seq, user, item, time in numbered])
        every += numbered
    for user in ("u", "v"):
        in_time = sorted((time, seq, item) for seq, name, item, time in every if name == user)
        assert users.taken(user) == tuple((*each, "event") for each in in_time[-most:])
    assert users.count == len(users.taken("u")) + len(users.taken("v"))
    assert users.item_counts == Counter(item for _, _, item, _ in every)
