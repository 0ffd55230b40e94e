"""Of each user the newest events are held, however they come in; the rest still counts for the items."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.catalogue.user_events import MOST_TYPES, Taken, UserEvents

batches = st.lists(
    st.lists(
        st.tuples(st.sampled_from("uv"), st.sampled_from("abc"), st.sampled_from(["buy", "view"]), st.integers(0, 5)),
        max_size=6,
    ),
    max_size=6,
)


@given(batches=batches, most=st.integers(1, 5))
def test_the_newest_of_each_user_and_type_are_held(batches: list[list[tuple[str, str, str, int]]], most: int) -> None:
    users, every = UserEvents(most), []
    for batch in batches:
        numbered = [(len(every) + place, *event) for place, event in enumerate(batch)]
        users.apply([(user, Taken(time, seq, item, kind)) for seq, user, item, kind, time in numbered])
        every += numbered
    for user in ("u", "v"):
        in_time = sorted((time, seq, item, kind) for seq, name, item, kind, time in every if name == user)
        newest = [each for kind in ("buy", "view") for each in [e for e in in_time if e[3] == kind][-most:]]
        assert users.taken(user) == tuple(sorted(newest))
    assert users.count == len(users.taken("u")) + len(users.taken("v"))
    assert users.item_counts == Counter(item for _, _, item, _, _ in every)


def test_types_of_any_number_take_no_more_memory() -> None:
    users = UserEvents(2)
    users.apply([("u", Taken(seq, seq, "i", f"view of {seq}")) for seq in range(100)])
    assert [each.time for each in users.taken("u")] == list(range(100 - 2 * MOST_TYPES, 100))
