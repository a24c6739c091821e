"""Request validation: what of a client's body may reach a worker, and with which values.

A row (`field.Field`) says for a field what becomes of it (passed, dropped, refused, or passed where
the deployment allows it) and why, and what it means for a request that passes from worker to worker
(`handover`). What SGLang itself says of a field stands in `declared.json`, for each supported
release: its type, its bounds, its default, the parts that it has. That file is written from
SGLang's sources (`python -m tests.releases.fields --record`). A field of a new release without a
row fails a test by name.

`meanings` makes types of what is declared, `models` a check of each endpoint's body, and `check`
applies both and the rows. SGLang itself is not imported:
`tests/unit/router/test_validation_contract.py` compares types and messages with each release.
`printed` writes the table down for people (`docs/pages/requests.md`).
"""
