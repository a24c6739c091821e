"""What clients of a deployment may do beyond plain requests (`allow` of the router).

A switch of SGLang's that an operator turns on is a permission: who starts workers with
`--enable-lora` means requests to name adapters.
"""

from toolkit.settings.deployment import Deployment

SWITCHES = {
    "enable-custom-logit-processor": "logit_processor",
    "enable-lora": "lora",
    "lora-paths": "lora",
    "enable-priority-scheduling": "priority",
    "enable-return-hidden-states": "hidden_states",
    "return-hidden-states-mode": "hidden_states",
}
"""SGLang's flags in `args` of a role, and what they let clients do."""


def permissions(deployment: Deployment) -> list[str]:
    """Names for `allow`, sorted: the file's own, and those that other keys mean."""
    names = set(deployment.router.allow)
    if deployment.capture_experts:
        names.add("capture")  # what `toolkit profile` asks for
    for role in deployment.roles.values():
        for flag, value in role.args.items():
            name = SWITCHES.get(flag.lstrip("-").replace("_", "-"))
            if name is not None and value not in (False, None):
                names.add(name)
    return sorted(names)
