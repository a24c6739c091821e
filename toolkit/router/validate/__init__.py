"""Request validation: what of a client's body may reach a worker, and with which values.

`table` says for every field that SGLang 0.5.21 knows what becomes of it (passed, dropped, refused,
or passed where the deployment allows it) and why; `check` applies it. SGLang itself is not
imported: `tests/unit/router/test_validation_contract.py` compares the table with the installed one,
so that a release with another field or type fails there. `document` writes the table down for
people (`docs/pages/requests.md`).
"""
