"""What pyproject.toml cannot say: `launch/` and `profiles/` lie beside the package in the
repository and inside it (`toolkit/_launch`, `toolkit/_profiles`) in the wheel."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["toolkit", "toolkit.*", "patches", "patches.*"]),
        "toolkit._launch",
        "toolkit._profiles",
    ],
    package_dir={"toolkit._launch": "launch", "toolkit._profiles": "profiles"},
    package_data={
        "toolkit": ["py.typed"],
        "toolkit.router.validate": ["declared.json"],
        "toolkit.setup": ["cpu.lock"],
        "toolkit.embedded": ["model/*", "draft/*", "*.jsonl"],
        "toolkit._launch": ["**/*.yaml", "**/*.json", "**/*.md"],
        "toolkit._profiles": ["**/*"],
        "patches": ["cpu_stubs/**/*.py"],
    },
)
