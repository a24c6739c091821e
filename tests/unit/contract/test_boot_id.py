"""Each process has an id of its own, one that was forked, too."""

import os

from toolkit.contract import boot_id


def test_a_process_has_one_and_a_fork_another() -> None:
    mine = boot_id.own()
    assert mine and boot_id.own() == mine
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, boot_id.own().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert theirs and theirs != mine
