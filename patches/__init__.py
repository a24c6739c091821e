"""Everything that touches SGLang's insides: one file a patch, put in by SGLang's own plugin loader.

`register` is this project's entry point in the group `sglang.srt.plugins`. SGLang calls it in
the main process and in every scheduler of every server on a machine where the toolkit is
installed, so it does nothing unless the environment says that the toolkit started this one.
"""


def register() -> None:
    """Entry point of the SGLang plugin: apply what this process needs, or end the process."""
    from patches import environment

    if not environment.enabled() or environment.installed():
        return
    from patches import base
    from patches.registry import patches_for

    on_cpu = environment.on_cpu()
    try:
        chosen = patches_for(base.current_process(), on_cpu=on_cpu)
        everywhere = {
            process: frozenset(patch.name for patch in patches_for(process, on_cpu=on_cpu))
            for process in base.Process
        }
        base.install(chosen)
    except base.PatchError as error:
        base.refuse(f"SGLang {environment.release()} does not fit: {error}")
    except Exception as error:
        # SGLang's loader would log this and start without the patches.
        what = f"{type(error).__name__}: {error}"
        base.refuse(f"SGLang {environment.release()}: applying the patches failed: {what}")
    environment.applied(tuple(patch.name for patch in chosen), everywhere)
