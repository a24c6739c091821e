"""Request validation: what of a client's body may reach a worker, and with which values.

Rows (`field.Field`) say for every field that a supported release of SGLang knows what becomes of it
(passed, dropped, refused, or passed where the deployment allows it) and why, and what it means for
a request that passes from worker to worker (`handover`). `declared` says which release has it: the
file is written from SGLang's sources (`python -m tests.releases.fields --record`), and a field of a
new release without a row fails a test by name. `check` applies the rows. SGLang itself is not
imported: `tests/unit/router/test_validation_contract.py` compares types and messages with the
installed one. `printed` writes the table down for people (`docs/pages/requests.md`).
"""
