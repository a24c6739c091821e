"""Which tests run under other CPUs' kernels, too (`toolkit.setup.kernels` lists their modules)."""

from toolkit.setup.kernels import MODULES

LEFT_OUT = frozenset(
    {
        # HiGHS proves optima for minutes, without BLAS; `joint` is in the other tests.
        "test_ours_is_within_three_percent_of_the_proven_optimum",
        "test_untied_on_three_gpus",
        # Statistics over much traffic: what they repeat a thousand times is decided in the others.
        "test_ranks_stay_more_level_than_under_br0",
        "test_memory_is_that_of_the_most_at_a_time",
        "test_ages_are_exponential_with_the_size_as_their_mean",
        "test_learned_is_as_good_as_survival_where_nothing_says_anything",
        "test_expectations_are_what_many_draws_give",
        "test_unchanged_traffic_is_declined_and_would_move_few_requests",
    }
)


def is_numeric(path: str, name: str) -> bool:
    """Whether the test function `name` of the file `path` (relative to the checkout) is one."""
    return path in MODULES and name not in LEFT_OUT
