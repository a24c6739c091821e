"""The JSON schema of a deployment file, for editors: `python -m toolkit.settings.schema`.

It says what keys there are, their types and bounds. Which of them can act together is for
`toolkit launch --dry-run` to say.
"""

import json
from typing import Any

from toolkit.settings.deployment import Deployment


def schema() -> dict[str, Any]:
    """As JSON Schema 2020-12."""
    found = Deployment.model_json_schema()
    hidden = [name for name, field in Deployment.model_fields.items() if field.exclude]
    for name in hidden:
        del found["properties"][name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
