"""What a model's configuration says of its experts."""


def expert_count(config: object) -> int:
    """Routed experts of a MoE layer by the model's config; 0 for a model without."""
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    return int(next((value for name in names if (value := getattr(config, name, None))), 0))
