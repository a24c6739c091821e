"""What the keys of a deployment file mean, where their field has no description of its own.

The page of deployment keys is made from these; a test fails for a key without a meaning.
"""

MEANINGS = {
    "name": "names the run and its folder; the only required key",
    "device": "where workers run; the same file serves both",
    "mode": "`pd`: prefill and decode workers; `plain`: each worker does both",
    "model": "which weights; a text is short for `model.path`",
    "model.path": "`embedded` (the small model that ships with the toolkit) or a folder of weights",
    "model.served_name": "the model's name in the API",
    "model.context_length": "the longest prompt and answer together, in tokens",
    "model.trust_remote_code": "let the model's folder bring Python code of its own",
    "prefill": "the workers that run prompts (`mode: pd`)",
    "decode": "the workers that generate tokens (`mode: pd`)",
    "worker": "the workers that do both (`mode: plain`)",
    "ROLE.replicas": "how many servers of this role",
    "ROLE.tp": "tensor parallel size of one replica",
    "ROLE.dp": "data parallel ranks of one replica",
    "ROLE.ep": "expert parallel size of one replica; divides `tp`",
    "ROLE.dp_attention": "DP ranks share their experts and take their steps together",
    "ROLE.mem_fraction": "share of the GPU's memory for weights and KV cache",
    "ROLE.waiting.order": "`fcfs`: first come, first served; `sjf`: shortest uncached prompt first",
    "ROLE.waiting.age_s": "with `sjf`: a prompt that waited this long goes before others of its "
    "priority, seconds",
    "ROLE.waiting.class_age_s": "with `sjf`: a prompt that waited this long goes before all, "
    "seconds",
    "ROLE.port": "HTTP port of the first replica",
    "ROLE.bootstrap_port": "port of the KV bootstrap server of the first replica",
    "ROLE.env": "environment of this role's processes",
    "transfer": "how KV moves from prefill to decode workers",
    "transfer.backend": "`auto` is `mooncake_tcp` on the CPU and `mooncake` on CUDA",
    "transfer.ib_device": "RDMA devices, as SGLang names them",
    "router": "the public port; a text is short for `router.kind`",
    "router.kind": "`toolkit`: our router; `sglang`: SGLang's own, without late decisions; `none`",
    "router.host": "address of the public port; one that is not loopback needs client keys",
    "router.port": "port of the public port",
    "router.dispatch": "`late`: choose the decode worker after the prefill; `concurrent`: choose "
    "both at once",
    "router.first_token": "whose first token a stream begins with: `prefill`: the "
    "prefill worker's, as soon as it is there; `decode`: its decode worker's, which is the same",
    "router.prefill_policy": "who picks the prefill worker",
    "router.decode_policy": "who picks the decode worker",
    "router.seed": "seed of policies that draw by chance",
    "router.max_inflight": "parts of requests that run at the same time",
    "router.max_queue": "parts that wait; more get 429",
    "router.parked_per_prefill": "finished prefills that one prefill rank may hold whose decode "
    "worker is not chosen yet",
    "router.park_timeout_s": "how long a finished prefill may wait for its decode worker, seconds",
    "router.request_timeout_s": "the longest time of one request, seconds",
    "router.silent_s": "a worker without any event, or whose HTTP is held up, for so long gets no "
    "new request, seconds; default 1.5, with `device: cuda` 5",
    "router.hung_s": "a worker without any event for so long loses its requests, seconds; default "
    "5, with `device: cuda` 30",
    "router.lost_s": "a request runs again when its rank has none for so long, seconds; default 60",
    "router.first_token_timeout_s": "how long a worker may be silent before a first token, seconds",
    "router.idle_timeout_s": "how long a worker may be silent in mid-stream, seconds; default 60, "
    "with `device: cuda` 120",
    "router.eject_share": "the largest share of a role that is left alone because it fails",
    "router.max_retries": "how often a request runs again when workers fail it",
    "router.max_parts": "parts (prompts times `n`) that one request may have",
    "router.max_body_mib": "the largest body, MiB",
    "router.max_body_total_mib": "memory of all bodies that are read, parsed, queued or run, MiB",
    "router.max_connections": "open connections; idle ones are closed first",
    "router.head_timeout_s": "time for the head of a request, seconds",
    "router.keepalive_s": "how long a connection may be idle between requests, seconds",
    "router.body_timeout_s": "time for a body, seconds",
    "router.body_pace_kib": "the slowest pace of a body, KiB/s; 0 asks for none",
    "router.parse_cpu_ms": "CPU time for checking a body that is not an ordinary one, and half a "
    "second more for each MiB of it; then 400, ms; default 100",
    "router.write_stall_s": "a client whose connection takes nothing for so long, while something "
    "waits to be written, is dropped, seconds; default 20",
    "router.accept_gzip": "take bodies with `Content-Encoding: gzip`; otherwise they get 415",
    "hosts": "the machines of a deployment on several hosts, by name",
    "hosts.NAME.address": "address by which the other hosts reach it",
    "env": "environment of all processes",
    "timeouts": "how long each stage may take",
    "timeouts.start": "until every process is ready, seconds",
    "timeouts.generation": "for the generation that proves the whole path, seconds",
    "timeouts.drain": "for running requests when the deployment stops, seconds",
    "timeouts.stop": "between asking a process to end and ending it, seconds",
    "restart": "how a process that died is started again",
    "restart.max_restarts": "deaths within `window` that a start-up survives",
    "restart.window": "over how long deaths are counted, seconds",
    "restart.first_delay": "delay before the first restart; it doubles each time, seconds",
    "restart.max_delay": "the longest such delay, seconds",
    "restart.rest_first": "first delay of a process that rests; it doubles each time, seconds",
    "restart.rest_max": "the longest rest, seconds",
    "restart.stuck_s": "a rank that holds work and makes no step for so long is stuck: its "
    "requests go elsewhere, and the launcher starts its worker again (default 5 on cpu, 20 on "
    "cuda; 0: nobody looks), seconds",
    "restart.announced_s": "the same for what a rank has announced and cannot foresee, such as a "
    "kernel's compilation (default 120 on cpu, 300 on cuda), seconds",
    "logs": "one log for each process, readable by its owner only",
    "logs.max_mib": "size at which a log rotates, MiB",
    "logs.keep": "older logs that stay; `NAME.log.1` is the youngest",
}
