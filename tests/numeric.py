"""Which unit tests compute: they run under other CPUs' kernels too (`toolkit.setup.kernels`).

The others of these folders are pure Python on whole numbers, or look at text and files.
"""

MODULES = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        "placement/test_eplb",
        "placement/test_gimbal",
        "placement/test_joint",
        "placement/test_judge",
        "placement/test_milp",
        "placement/test_swaps",
        "placement/test_synthetic",
        "policies/test_brh",
        "policies/test_composed",
        "policies/test_eldr",
        "policies/support/test_inflight_lengths",
        "policies/test_level",
        "policies/test_predictors",
        "policies/support/test_inflight_signatures",
        "signatures/test_assignment",
        "signatures/test_clusters",
        "signatures/test_distinct",
        "signatures/test_drift",
        "signatures/test_drift_nearness",
        "signatures/test_drift_refits",
        "signatures/test_drift_reservoir",
        "signatures/test_fit",
        "signatures/test_mask",
        "signatures/test_of_kept",
        "signatures/test_space",
        "simulate/test_parts",
        "simulate/test_session",
        "simulate/test_simulation",
        "test_exact",
    )
)

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
