"""What is searched: every knob is a key of the deployment file, or a part of a policy's name."""

from collections.abc import Callable
from typing import Any

from toolkit.contract.waiting import Waiting, from_yaml
from toolkit.launch.checks.waiting import PARKED as SHORTEST_PARKED
from toolkit.plan import policy_text as text_of
from toolkit.plan.candidate import Candidate
from toolkit.plan.expert_layout import Layouts
from toolkit.plan.knob import Knob
from toolkit.plan.objective import PlanSlo
from toolkit.plan.placing import placing
from toolkit.plan.plain_data import arg_key
from toolkit.plan.preempt import stopping
from toolkit.plan.split import Split, split_of, with_split
from toolkit.plan.stages import Stager, staging
from toolkit.policies import BALANCERS
from toolkit.policies.gimbal import Thresholds
from toolkit.settings.document import Document, get, put
from toolkit.settings.router.config import RouterConfig

PLAIN_PREFILL = "round_robin"
PREFILL_POLICIES = ("round_robin", "shortest_queue", "least_tokens", "prefix_affinity", "gimbal")
DECODE_POLICIES = (
    "shortest_queue",
    "level",
    "brh@learned",
    "br0",
    "kv_shortest_queue",
    "pooled@kv_shortest_queue",
    "pooled@shortest_queue",
    "least_tokens",
    "power_of_two",
    "gimbal",
    "composed@filter+level+user",
    "round_robin",
)
LOCAL_POLICIES = ("eldr", "composed@filter+eldr+level+user")
"""Those that need a profile."""
TAUS = (0.0, 0.05, 0.1, 0.2, 0.5)
HORIZONS = (10, 20, 40, 80, 160)
GAMMAS = (None, 0.8, 0.9, 0.97)
"""None is BR-H's own, which follows the traffic."""
BETAS = (1, 3, 12)
"""Times the decode ranks; with alpha 1, as only their ratio decides. None is BR-H's own, 6."""
RUNNING = (0.5, 1, 2, 4)
CHUNKS = (0.25, 0.5, 1, 2)
PARKED = (8, 16, 32, 64)
OWN = RouterConfig.model_fields
"""The router's own settings, where a file names none."""
AGES = (1, 5)
"""Seconds after which a waiting prompt goes first, where else the shortest does."""


def searched(
    own: Candidate,
    splits: tuple[Split, ...],
    local: bool,
    slo: PlanSlo | None = None,
    stager: Stager | None = None,
    layouts: Layouts | None = None,
) -> list[Knob]:
    """The knobs of a deployment, in the order in which they are tried. `local`: whether policies
    that follow experts can be launched and simulated (a profile is known). `slo`: what requests
    should keep, None where nobody's prompt is to be stopped. `stager`: by whom stages of decode
    workers are planned, None where they are not. `layouts`: where experts may lie, None where that
    is not searched."""
    knobs = [
        Knob("split", splits, split_of, with_split),
        _policy("decode", own, (*DECODE_POLICIES, *(LOCAL_POLICIES if local else ()))),
        _policy("prefill", own, PREFILL_POLICIES),
        *([] if layouts is None else placing(own, layouts)),
        *_policy_knobs(own),
        *([] if stager is None else staging(own, stager)),
        *_sizes(own),
        *([] if slo is None else stopping(own, slo)),
    ]
    return [knob for knob in knobs if len(knob.values) > 1]


def plain(document: Document, balancer: str = BALANCERS[0]) -> Document:
    """The file as others would route it: round robin to prefill, a load balancer to decode, nobody
    stops anybody's prompt, all decode workers serve all lengths, and nobody moves."""
    for keys in (("decode", "stages"), ("router", "rebalance")):
        if get(document, *keys) is not None:
            document = put(kept(document), keys, None)
    if get(document, "prefill", "preempt") is not None:
        document = put(document, ("prefill", "preempt"), None)
    document = put(document, ("router", "prefill_policy"), PLAIN_PREFILL)
    return put(document, ("router", "decode_policy"), balancer)


def kept(document: Document) -> Document:
    """The file with as many decode workers as its stages say, written out."""
    return put(document, ("decode", "replicas"), split_of(document).decode)


def policy_of(document: Document, side: str) -> str:
    """The policy of a file, or the router's own where it names none."""
    key = f"{side}_policy"
    return str(get(document, "router", key) or OWN[key].default)


def _policy(side: str, own: Candidate, names: tuple[str, ...]) -> Knob:
    def read(document: Document) -> str:
        return policy_of(document, side)

    def write(document: Document, value: str) -> Document:
        return put(document, ("router", f"{side}_policy"), value)

    mine = read(own.document)
    values = names if mine in names else (mine, *names)
    return Knob(f"{side} policy", values, read, write, ordered=False)


def _in_text(
    name: str,
    values: tuple[Any, ...],
    parts: tuple[str, ...],
    read: Callable[[str], Any],
    write: Callable[[str, Any], str],
) -> Knob:
    """A knob that stands in the decode policy's name, where that has one of these parts."""

    def text(document: Document) -> str:
        return policy_of(document, "decode")

    return Knob(
        name,
        values,
        lambda document: read(text(document)),
        lambda document, value: put(
            document, ("router", "decode_policy"), write(text(document), value)
        ),
        lambda document: text_of.part(text(document), *parts) is not None,
    )


def _policy_knobs(own: Candidate) -> list[Knob]:
    ranks = own.fleet.decode_ranks
    betas = (BETAS[0] * ranks, BETAS[1] * ranks, None, BETAS[2] * ranks)
    found = [
        _in_text("s_greedy", (0, None), text_of.BARRIERS, text_of.s_greedy, text_of.with_s_greedy),
        _brh("predictor", ("learned", "survival"), "learned"),
        _brh("horizon", HORIZONS, 80),
        _brh("gamma", GAMMAS, None),
        _brh("beta", betas, None),
    ]
    found += [_gimbal(key, values) for key, values in GIMBAL.items()]
    return [*found, _tau()]


GIMBAL = {"kv": (0.5, 0.7, 0.9), "diff": (0.05, 0.1, 0.2), "load": (1000.0, 3000.0, 10_000.0)}


def _brh(key: str, values: tuple[Any, ...], default: Any) -> Knob:
    def read(text: str) -> Any:
        found = text_of.brh_value(text, key)
        return default if found is None else found

    def write(text: str, value: Any) -> str:
        return text_of.with_brh(text, key, value)

    return _in_text(f"brh {key}", values, ("brh",), read, write)


def _gimbal(key: str, values: tuple[float, ...]) -> Knob:
    def read(text: str) -> float:
        found: float = getattr(text_of.thresholds(text), key)
        return found

    def write(text: str, value: float) -> str:
        return text_of.with_threshold(text, key, value)

    own = getattr(Thresholds(), key)
    assert own in values
    return _in_text(f"gimbal {key}", values, ("gimbal",), read, write)


def _tau() -> Knob:
    def read(document: Document) -> float:
        found = text_of.tau_in(policy_of(document, "decode"))
        found = get(document, "router", "tau") if found is None else found
        return 0.1 if found is None else float(found)

    def write(document: Document, value: float) -> Document:
        bare = text_of.without_tau(policy_of(document, "decode"))
        return put(put(document, ("router", "decode_policy"), bare), ("router", "tau"), value)

    def applies(document: Document) -> bool:
        return text_of.part(policy_of(document, "decode"), "eldr") is not None

    return Knob("tau", TAUS, read, write, applies)


def _sizes(own: Candidate) -> list[Knob]:
    decode = own.deployment.decode
    shared = decode.dp if decode.dp_attention else 1
    # As one server's; where the file leaves it to SGLang it is what the caller says of a rank.
    running = decode.max_running or own.fleet.decode.slots * shared
    most = _graph(own) * shared
    limits = sorted({max(shared, round(running * by)) for by in RUNNING if running * by <= most})
    chunk = own.fleet.prefill.chunk * (own.deployment.prefill.dp if _split_chunk(own) else 1)
    divisors = [n for n in range(1, decode.tp + 1) if decode.tp % n == 0]
    return [
        _key("decode.max_running", tuple(sorted({*limits, running})), running),
        _key("decode.dp", tuple(divisors) if decode.dp_attention else (decode.dp,), decode.dp),
        _chunk(own, chunk),
        _waiting(own),
        _parked(own),
    ]


def _key(name: str, values: tuple[Any, ...], default: Any) -> Knob:
    keys = tuple(name.split("."))

    def read(document: Document) -> Any:
        found = get(document, *keys)
        return default if found is None else found

    return Knob(name, values, read, lambda document, value: put(document, keys, value))


def _graph(own: Candidate) -> float:
    """Requests a rank may run with CUDA graphs: steps above the captured sizes are others."""
    args = own.deployment.decode.args
    key = arg_key(own.document, "decode", "cuda-graph-max-bs-decode")[-1]
    return float(args.get(key, float("inf")))


def _split_chunk(own: Candidate) -> bool:
    return own.deployment.prefill.dp_attention


def _chunk(own: Candidate, now: int) -> Knob:
    """SGLang's batch limit of a prefill pass, of the server."""
    keys = arg_key(own.document, "prefill", "chunked-prefill-size")
    values = tuple(sorted({round(now * by) for by in CHUNKS if now * by >= 128}))

    def read(document: Document) -> int:
        return int(get(document, *keys) or now)

    return Knob(
        "chunked-prefill-size", values, read, lambda document, value: put(document, keys, value)
    )


def _waiting(own: Candidate) -> Knob:
    """`fcfs`, or `sjf:AGE_S` (`toolkit.contract.waiting`)."""

    def read(document: Document) -> str:
        found = Waiting.model_validate(from_yaml(get(document, "prefill", "waiting") or "fcfs"))
        return f"sjf:{found.age_s:g}" if found.text else "fcfs"

    def write(document: Document, value: str) -> Document:
        order, _, age = value.partition(":")
        if not age:
            return put(document, ("prefill", "waiting"), order)
        old = get(document, "prefill", "waiting")
        kept = old if isinstance(old, dict) and old.get("order") == order else {}
        made = {**kept, "order": order, "age_s": float(age)}
        return put(document, ("prefill", "waiting"), made)

    now = read(own.document)
    values = ("fcfs", *(f"sjf:{age:g}" for age in AGES))
    return Knob("prefill.waiting", values if now in values else (*values, now), read, write)


def _parked(own: Candidate) -> Knob:
    """No more than the prefill worker has slots, which parked requests hold. Concurrent dispatch
    parks none."""
    keys = ("router", "parked_per_prefill")
    held = own.deployment.prefill.max_running
    now = own.fleet.router.parked_per_prefill
    values = {now, *(each for each in PARKED if held is None or each <= held)}
    waiting = _waiting(own)

    def read(document: Document) -> int:
        default = (
            OWN["parked_per_prefill"].default
            if waiting.read(document) == "fcfs"
            else SHORTEST_PARKED
        )
        return int(get(document, *keys) or default)

    return Knob(
        ".".join(keys),
        tuple(sorted(values)),
        read,
        lambda document, value: put(document, keys, value),
        lambda document: get(document, "router", "dispatch") != "concurrent",
    )
