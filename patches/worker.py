"""Start one SGLang server with the patches: `python -m patches.worker <SGLang's own flags>`.

SGLang spawns its schedulers and detokenizer with multiprocessing, and a spawned child imports the
parent's main module first. So the top of this file runs in *every* process of the worker, before
SGLang or transformers are imported there, which no plugin can do.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from patches import stubs
from patches.cpu import template
from patches.environment import installed, on_cpu
from toolkit.contract.variables import HEARTBEAT_VARIABLE, PATCHES_VARIABLE
from toolkit.preloaded.server import die_with_parent


def prepare_process() -> None:
    """What must be in place before anything of SGLang is imported; in every process."""
    if __name__ == "__mp_main__":
        # The main process is left alone: a launcher arms it before exec, a shell need not.
        die_with_parent()
        check_plugin_is_found()
    if on_cpu():
        prepare_imports()


def prepare_imports() -> None:
    """What must be in place before SGLang is imported for the CPU."""
    # The first request with a penalty, say, would have its scheduler wait for g++, half a minute on
    # a busy machine, and all others with it.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    stubs.put_on_path()


def check_plugin_is_found() -> None:
    """Refuse to start when SGLang's loader would not even find this plugin."""
    from importlib.metadata import entry_points

    from patches.base import refuse

    found = [
        entry.name
        for entry in entry_points(group="sglang.srt.plugins")
        if entry.value == "patches:register"
    ]
    if not found:
        refuse(
            "the plugin patches:register is not installed in "
            f"{sys.prefix}; run `pip install --no-deps -e .` in the project"
        )
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed and not set(found) & {name.strip() for name in allowed.split(",")}:
        refuse(f"SGLANG_PLUGINS={allowed} keeps out the plugin {found[0]}")


def main() -> None:
    """Load the plugin, parse SGLang's own flags and serve until told to stop."""
    os.environ.setdefault(PATCHES_VARIABLE, "1")
    check_plugin_is_found()
    if on_cpu():
        template.start()

    # SGLang's `launch_server` as a library: its `__main__` block does these same steps.
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from patches.base import refuse
    from patches.dp import method
    from patches.experts import signature
    from patches.flags import understood
    from patches.pd import waiting_queue
    from patches.relocate import kept
    from patches.start import changing
    from patches.steps import speculative

    load_plugins()
    if not installed():
        refuse("SGLang loaded its plugins without applying the toolkit's patches")
    flags = understood(kept.adopt(method.adopt(sys.argv[1:])))
    server_args = prepare_server_args(flags)
    method.check_worker(server_args)
    signature.check_worker(server_args)
    waiting_queue.check_worker(server_args)
    speculative.check_worker(server_args)
    changing.check_worker(server_args)
    with _heartbeats():
        try:
            run_server(server_args)
        finally:
            kill_process_tree(os.getpid(), include_parent=False)


@contextlib.contextmanager
def _heartbeats() -> Iterator[None]:
    """A folder for them, where no launcher has given one."""
    if os.environ.get(HEARTBEAT_VARIABLE):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="toolkit-", ignore_cleanup_errors=True) as folder:
        os.environ[HEARTBEAT_VARIABLE] = folder
        yield


if __name__ in ("__main__", "__mp_main__"):
    prepare_process()

if __name__ == "__main__":
    main()
