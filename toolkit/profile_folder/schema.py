"""`profile.json`: everything of a profile that a person can read. Arrays lie beside it.

Shapes use N requests, L MoE layers, E experts, T sampled tokens, k experts a token. Layers are
numbered by their place among the MoE layers; `ProfiledModel.layers` gives their numbers in the
model. Arrays of `arrays.safetensors`:

    prefill_counts, decode_counts  int32 [N, L, E]   tokens of request n whose top-k had e
    prompt_tokens, output_tokens   int32 [N]         rows counted above (decode: tokens that ran)
    held_out                       uint8 [N]         1: not used for any fit
    affinity_prefill, _decode      int64 [L-1, E, E] tokens that used j at layer l and k at l + 1
    tokens_fit, tokens_held_out    int16 [T, L, k]   a sample of tokens, prefill and decode mixed
    idf                            float32 [L, E]
    centroids                      float32 [K, D]    D = E * number of layers in the mask
    cluster                        int32 [N]         worker of each fitted request, -1: held out
    steps                          float32 [M, F+L]  columns: `steps_columns`, then distinct experts
    transfers                      float64 [R, 4]    tokens, bytes, seconds, requests at once
    placement_KIND                 int32 [L, P]      one for each of `placements`
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfiledModel(_Strict):
    """The model that was measured. `fingerprint` is `toolkit.fingerprint`'s."""

    name: str
    architecture: str
    fingerprint: str
    layers: tuple[int, ...]
    experts: int
    top_k: int
    hidden_layers: int


class Setting(_Strict):
    """Where and how it was measured. `workers` is prefill + decode ranks, such as "1P + 2D"."""

    sglang: str
    device: str
    machine: str
    workers: str
    dtype: str
    measured_at: str
    toolkit: str
    commands: tuple[str, ...] = ()
    note: str = ""


class Data(_Strict):
    """The calibration requests. `domains` and `languages` count requests by label ("" unknown)."""

    origin: str
    requests: int
    held_out: int
    prompt_tokens: int
    output_tokens: int
    domains: dict[str, int]
    languages: dict[str, int]


class ProfiledRequest(_Strict):
    """One row of the arrays; its text is not kept."""

    id: str
    domain: str = ""
    language: str = ""


class Activations(_Strict):
    """Load by layer. Imbalance is max/mean over experts; `idle` experts never fired."""

    imbalance_prefill: tuple[float, ...]
    imbalance_decode: tuple[float, ...]
    idle_prefill: tuple[int, ...]
    idle_decode: tuple[int, ...]


class Affinity(_Strict):
    """Share of the pairs' traffic that the strongest 1 % and 10 % of (j, k) pairs carry, and what
    they would carry if consecutive layers were independent, mean over layers."""

    top1_prefill: float
    top10_prefill: float
    top1_decode: float
    top10_decode: float
    top1_independent: float
    top10_independent: float


class Correlation(_Strict):
    """Prefill against decode counts (Pearson): over the set, by layer, and per request."""

    model: float
    by_layer: tuple[float, ...]
    per_request_median: float
    per_request_p10: float
    per_request_p90: float


class Rho(_Strict):
    """Spearman of signature distance and decode-use distance; None where it is undefined."""

    raw: float | None
    binary: float | None
    idf: float | None
    idf_masked: float | None
    idf_masked_held_out: float | None
    mask: tuple[int, ...]
    """Layers kept, in the order in which they were taken."""
    curve: tuple[float, ...]
    """rho after each layer that was taken, and one more where it fell (if it did)."""


class Distinct(_Strict):
    """Distinct experts a layer in decode batches of `batch` held-out requests.

    `clustered` batches hold requests of one fitted cluster, `by_domain` and `by_language` those of
    one label; None where no group had enough requests. Reductions are against random batches.
    """

    batch: int
    random: float
    clustered: float | None
    by_domain: float | None
    by_language: float | None
    by_cell: float | None


class CentroidRows(_Strict):
    """The fitted clusters: one for each of `k` decode workers, at most `bound` requests each."""

    k: int
    bound: int
    sizes: tuple[int, ...]
    inertia: float
    vanilla_inertia: float
    vanilla_sizes: tuple[int, ...]
    seed: int
    distinct: Distinct


class LinearFit(_Strict):
    """Seconds = sum of coefficient * term. Errors are relative, on steps that were not fitted;
    `constant_error` is that of always answering the fitted mean."""

    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    units: tuple[str, ...]
    held_out_error: float
    constant_error: float
    samples: int


class Latency(_Strict):
    """`qoe`: CascadeInfer's D_0..D_4 (section 4.1: a request's latency by output token against the
    mean loads of its batches), robust and with no term below zero; `qoe_published`: the same by
    plain least squares, as its paper has them. `toolkit.policies.stages` plans by `qoe`.
    `distinct`: a decode step's time with the term that ELDR's argument needs, and
    `without_distinct` the same without it. `prefill`: a prefill step's time. `accepted`: tokens
    that a decode step gave a request in the mean, where a draft proposed some; None: one."""

    qoe: LinearFit | None = None
    qoe_published: LinearFit | None = None
    distinct: LinearFit | None = None
    without_distinct: LinearFit | None = None
    prefill: LinearFit | None = None
    accepted: float | None = None
    note: str = ""


class TransferFit(_Strict):
    """KV from prefill to decode: latency is the fit's constant, bandwidth its slope's inverse."""

    backend: str
    bytes_per_token: float
    latency_ms: float
    bandwidth_gb_s: float
    median_ms: float
    samples: int


PlacementKind = Literal["linear", "eplb", "gimbal", "milp", "joint"]


class PlacementResult(_Strict):
    """One placement, judged on tokens that were not fitted.

    `balance` is max/mean GPU load by layer, averaged over layers (worst in `balance_max`);
    `gpu_cut` and `node_cut` are the shares of token-hops between consecutive layers that cross;
    `fan_out` is the mean number of GPUs that a token's experts touch in a layer; `step` is the
    predicted step time relative to `linear`. `gap` is what the MILP proved, in percent.
    """

    kind: PlacementKind
    gpus: int
    gpus_per_node: int
    redundant: int
    balance: float
    balance_max: float
    gpu_cut: float
    node_cut: float
    fan_out: float
    step: float
    gap: float | None = None
    seconds: float
    note: str = ""


class Profile(_Strict):
    """A whole profile.json."""

    schema_version: int = SCHEMA_VERSION
    model: ProfiledModel
    setting: Setting
    data: Data
    requests: tuple[ProfiledRequest, ...]
    activations: Activations
    affinity: Affinity
    correlation: Correlation
    rho: Rho
    centroids: CentroidRows
    latency: Latency
    transfer: TransferFit | None = None
    placements: tuple[PlacementResult, ...] = ()
    steps_columns: tuple[str, ...] = ()
