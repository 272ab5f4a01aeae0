"""Writes the one-file manifest from the chart, and the archive of the chart: `make chart`.

python deploy/kubernetes/render.py FOLDER

The manifest is what the chart renders with its default values, behind the namespace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import helm_python

HERE = Path(__file__).parent
CHART = HERE.parent / "helm/watchtower"
MANIFEST = HERE / "watchtower.yaml"
NAME = "watchtower"
HEAD = """\
# watchtower on a cluster: one tower, and an agent on every node with GPUs (docs/kubernetes.md).
#   kubectl apply -f watchtower.yaml
# Before that, make the images, and the tokens:
#   kubectl create namespace watchtower
#   kubectl -n watchtower create secret generic watchtower-tokens \\
#     --from-literal=agent="$(watchtower token)" --from-literal=reader="$(watchtower token)" \\
#     --from-literal=operator="$(watchtower token)"
# `make chart` writes this file from the chart in deploy/helm/watchtower.
apiVersion: v1
kind: Namespace
metadata:
  name: watchtower
  labels:
    # The agent needs the processes of the host. Nothing else in this namespace should run.
    pod-security.kubernetes.io/enforce: privileged
"""


def render(values: dict[str, Any], name: str = NAME, namespace: str = NAME) -> str:
    """Return the objects of a release with these values, as one text.

    Raises helm_python.HelmError if the values or the templates are wrong.
    """
    chart = helm_python.Chart.load(CHART)
    chart.validate_schema(chart.merge_values(values))
    texts = chart.render(values, name=name, namespace=namespace)
    parts = [
        text.strip().removeprefix("---\n")
        for file, text in sorted(texts.items(), reverse=True)
        if file.endswith(".yaml") and text.strip()
    ]
    return "".join(f"---\n{part}\n" for part in parts)


if __name__ == "__main__":
    MANIFEST.write_text(HEAD + render({}), "utf-8")
    print(helm_python.package(CHART, destination=sys.argv[1]))
