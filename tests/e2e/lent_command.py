"""A command of the toolkit whose launchers import SGLang once between them: `-m
tests.e2e.lent_command bench suite ...`.

One that starts six deployments would import it six times, 9 s of CPU each; `lending` says more.
"""

from tests.e2e import lending
from toolkit.cli.main import main

if __name__ == "__main__":
    with lending.lent():
        main()
