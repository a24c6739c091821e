"""The reference checks what workers said in one pass; wrong tokens do not get past it."""

from tests.e2e.calls import prompt
from tests.e2e.reference import Reference

TOKENS = 24
WRONG = ([0], [7], [TOKENS - 1], [3, 20])


def test_a_wrong_token_is_not_taken_for_right(reference: Reference) -> None:
    judge = Reference()
    for number, places in enumerate(WRONG):
        for cut in (0, 1, TOKENS - places[-1]):
            ids = prompt(f"reference-{number}-{cut}", 40)
            right = judge.greedy(ids, TOKENS)
            said = [token + (place in places) for place, token in enumerate(right)]
            assert reference.greedy_each([ids], TOKENS, [said[: TOKENS - cut]]) == [right]
            assert reference.greedy(ids, TOKENS, [*said, 1]) == right
