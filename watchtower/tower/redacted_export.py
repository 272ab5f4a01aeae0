"""An export without names: of jobs, nodes, users, paths, addresses, programs and log lines."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from watchtower.incidents.redaction.redactor import RULES, Redactor, Rule, redact_value
from watchtower.tower.acks import AckView
from watchtower.tower.export import Bundle
from watchtower.tower.feedback import FeedbackView

_BUNDLES = msgspec.json.Decoder(Bundle)


def _keep(_: Redactor, value: object) -> object:
    return value


_OF_BUNDLE: dict[tuple[type, str], Rule] = {
    **dict.fromkeys(
        ((Bundle, name) for name in ("format", "watchtower", "exported_at", "id")), _keep
    ),
    (Bundle, "opened_at"): _keep,
    (Bundle, "closed_at"): _keep,
    (Bundle, "job"): lambda redactor, value: redactor.name("job", value),
    (AckView, "at"): _keep,
    (AckView, "by"): lambda redactor, value: redactor.name("user", value),
    (FeedbackView, "at"): _keep,
    (FeedbackView, "by"): lambda redactor, value: redactor.name("user", value),
    (FeedbackView, "note"): lambda redactor, value: redactor.removed(value),
    (AckView, "note"): lambda redactor, value: redactor.removed(value),
}
"""Fields that the tower writes itself stay."""

_ALL = RULES | _OF_BUNDLE


def redact_export(body: bytes) -> bytes:
    """Return an export without names. Raises msgspec.MsgspecError."""
    return msgspec.json.encode(redact_bundle(_BUNDLES.decode(body)))


def redact_bundle(bundle: Bundle) -> Bundle:
    """Return an export in which `watchtower replay` finds the same rank and cause."""
    redactor = Redactor(_find_names(bundle))
    return redact_value(redactor, replace(bundle, redacted=True), _ALL)


def _find_names(bundle: Bundle) -> dict[str, list[str]]:
    case, batches = bundle.case, [each.batch for each in bundle.dumps]
    nodes = [batch.node for batch in batches] + [each.node for each in bundle.verdict.suspects]
    jobs = [bundle.job, bundle.verdict.job, *(batch.job for batch in batches)]
    if case is not None:
        nodes += [each.node for each in case.nodes] + [each.node for each in case.ranks]
        jobs.append(case.job)
    return {
        "node": nodes,
        "job": jobs,
        "user": [each.by for each in (bundle.ack, bundle.feedback) if each],
        "owner": [batch.owner for batch in batches],
        "launch": [batch.launch for batch in batches],
        "batch": [batch.id for batch in batches],
    }
