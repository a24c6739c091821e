"""No code reads without bounds, runs what it reads, or makes a file whose name can be known."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]

# What reads without bounds, and why it may.
FREE = {
    "toolkit/setup": "files of the set-up itself, by a Python that has no toolkit yet",
    "toolkit/preloaded": "what a launcher tells its own child, by a pipe",
    "toolkit/embedded": "a file of the project",
    "toolkit/bounded_files.py": "the bounds",
    "toolkit/router/splitting.py": "a client's body, within the bounds of its validation",
    "toolkit/router/validate/declared.py": "a file of the project",
    "toolkit/router/eldr/refit_job.py": "from the router to its own child, by a pipe",
    "toolkit/router/eldr/drift_refits.py": "from that child",
}
PICKLES = {
    "toolkit/router/parse_job.py": "from the router to its own child, by a pipe",
    "toolkit/router/parsing.py": "from that child, with what it may build listed",
    "patches/cpu/template.py": "in a folder that only this user opens",
}


def calls() -> list[tuple[str, str, ast.Call]]:
    found = []
    for path in [*(ROOT / "toolkit").rglob("*.py"), *(ROOT / "patches").rglob("*.py"),
                 *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.py")]:  # fmt: skip
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if not any(word in text for word in ("load(", "loads(", "decompress(")):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr.endswith(("load", "loads", "decompress")):
                found.append((name, f"{ast.unparse(node.func.value)}.{node.func.attr}", node))
    return found


def test_nothing_is_read_past_the_bounds_or_run() -> None:
    wrong = []
    for path, called, node in calls():
        where = f"{path}:{node.lineno} {called}"
        options = {each.arg: ast.unparse(each.value) for each in node.keywords}
        product = path.startswith("toolkit/") and not path.startswith(tuple(FREE))
        if product and called in ("json.load", "json.loads", "yaml.safe_load", "gzip.decompress"):
            wrong.append(where)
        if called in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
            wrong.append(where)
        if called == "torch.load" and options.get("weights_only") != "True":
            wrong.append(where)
        if called in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False":
            wrong.append(where)
        pickled = called in ("pickle.load", "pickle.loads", "dill.loads", "joblib.load")
        if pickled and not path.startswith("tests/") and path not in PICKLES:
            wrong.append(where)
    assert wrong == []


def test_no_name_in_tmp_can_be_known_beforehand() -> None:
    """Whoever makes the file first has it. Locks and torch's cache check whose their folder is."""
    known = {"toolkit/launch/claims.py", "toolkit/launch/scratch.py"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ("toolkit", "patches")
        for path in (ROOT / room).rglob("*.py")
        if str(path.relative_to(ROOT)) not in known
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("/tmp/", "/var/tmp/", "/dev/shm/"))
        )
        or (isinstance(node, ast.Attribute) and node.attr in ("mktemp", "gettempdir"))
    ]
    assert wrong == []
