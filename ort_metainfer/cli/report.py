"""A decision in words: from the plain values that ``Decision.as_dict`` gives and the cache keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ort_metainfer.cli.advice import advice
from ort_metainfer.decision import WorstNode
from ort_metainfer.ratios import speedup_words
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.placement import placement_from_dict

__all__ = [
    "decision_lines",
    "gain_lines",
    "key_lines",
    "refusal_lines",
    "rule_lines",
    "speedup_text",
    "trial_lines",
    "worst_nodes_text",
]

Plain = Mapping[str, Any]

KEY_FIELDS = ("model", "device", "shapes", "policy")


def decision_lines(decision: Plain) -> list[str]:
    """What was decided, in a dozen lines at most."""
    strategy = Strategy.from_dict(decision["strategy"])
    lines = [_line("strategy", strategy.describe()), _line("because", decision["reason"])]
    trial = winner(decision)
    if trial:
        lines += _figures(trial)
    elif strategy.is_default:
        lines += [_line("speed-up", "none: plain onnxruntime runs as it is"), _line("output error", "none")]
    lines.append(_line("decided by", f"{decision['origin']}, in {decision['decided_in_s']:.2f} s"))
    if decision.get("stopped"):
        lines.append(_line("stopped", decision["stopped"]))
    if decision["cache"] != "unused":
        lines.append(_line("cache", ": ".join(part for part in (decision["cache"], decision["cache_reason"]) if part)))
    if not decision["complete"]:
        lines.append(_line("left to do", decision["incomplete_reason"]))
    if decision.get("compiled_reason"):
        kept = "loaded from" if decision.get("compiled") else "not kept"
        lines.append(_line("compiled", f"{kept}: {decision['compiled_reason']}"))
    if decision["strategy_file"]:
        lines.append(_line("strategy file", decision["strategy_file"]))
    return lines


def winner(decision: Plain) -> Plain | None:
    """The trial whose strategy is applied, with all gates passed; None where there is none."""
    for trial in decision["trials"]:
        passed = not trial["failure"] and len(trial["gates"]) == 3 and all(gate["passed"] for gate in trial["gates"])
        if passed and trial["strategy"] == decision["strategy"]:
            found: Plain = trial
            return found
    return None


def _figures(trial: Plain) -> Iterator[str]:
    timing = trial["duel"] or trial["timing"]
    if timing:
        yield from gain_lines(timing)
        yield _line("one run", f"{timing['p50_ms']:.3f} ms, plain {timing['baseline_p50_ms']:.3f} ms (medians)")
    if trial["error"] is not None:
        noise = {"optimiser off against on": "noise_floor", "at another number of threads": "thread_noise"}
        told = [f"{how}: {trial[name]:.1e}" for how, name in noise.items() if trial.get(name) is not None]
        beside = f" (onnxruntime's own {', '.join(told)})" if told else ""
        yield _line("output error", f"{trial['error']:.1e} relative L2{beside}")
    if worst := worst_nodes_text(trial):
        yield _line("worst nodes", worst)
    if trial.get("placement"):
        yield _line("runs on", placement_from_dict(trial["placement"]).describe())


def worst_nodes_text(trial: Plain) -> str:
    """The nodes that add most error to a lossy strategy, worst first, and what was left out; empty for others."""
    nodes = [WorstNode(**node).describe() for node in trial.get("worst_nodes", ())]
    note = trial.get("worst_nodes_note", "")
    return "; ".join(part for part in (", ".join(nodes), note) if part)


GAINS = {"peak_mb": "memory", "runs_per_s": "throughput", "p99_ms": "tail"}


def gain_lines(timing: Plain) -> Iterator[str]:
    """How much better than plain onnxruntime, and the figures of the objective."""
    yield _line(_gain(timing), f"{speedup_text(timing)} over plain onnxruntime")
    yield from _of_the_objective(timing)


def _gain(timing: Plain) -> str:
    """What the ratio is of: each objective's figures are there under that objective alone."""
    return next((word for name, word in GAINS.items() if timing.get(name) is not None), "speed-up")


def _of_the_objective(timing: Plain) -> Iterator[str]:
    if timing.get("peak_mb") is not None:
        yield _line("peak memory", f"{timing['peak_mb']:.1f} MB, plain {timing['baseline_peak_mb']:.1f} MB")
        bound = f"{timing['slowdown']:.2f} times as long as plain, at most {timing['slowdown_high']:.2f}"
        yield _line("", f"a run takes {bound}")
    if timing.get("runs_per_s") is not None:
        rates = f"{timing['runs_per_s']:.4g} a second, plain {timing['baseline_runs_per_s']:.4g}"
        yield _line("runs", f"{rates} (all callers together)")
    if timing.get("p99_ms") is not None:
        yield _line("P99", f"{timing['p99_ms']:.3f} ms, plain {timing['baseline_p99_ms']:.3f} ms")


def speedup_text(timing: Plain) -> str:
    """``2.54x [2.14, 2.83], 40 rounds, same against same within 1.03``."""
    ratio = speedup_words(timing["speedup"], timing["speedup_low"], timing["speedup_high"])
    band = f"same against same within {timing['band']:.2f}"
    return f"{ratio}, {timing['rounds']} rounds, {band}"


def trial_lines(decision: Plain) -> Iterator[str]:
    """Every trial: who proposed it, what experience expected of it, each gate with its figures, the failure if it came
    to none."""
    learned = [one for one in decision.get("proposals", ()) if one["by"] == "meta-model"]
    for trial in decision["trials"]:
        yield f"{Strategy.from_dict(trial['strategy']).describe()}   (proposed by {trial['by']})"
        for proposal in (one for one in learned if one["strategy"] == trial["strategy"]):
            yield f"    learned   {proposal['reason']}  [{proposal['source']}]"
        for gate in trial["gates"]:
            # those of single outputs (logits.cosine) are in --json; the words tell the worst
            figures = " ".join(f"{name}={value:.4g}" for name, value in gate["figures"].items() if "." not in name)
            verdict = "passed" if gate["passed"] else "FAILED"
            yield f"    {gate['name']:<9} {verdict}  {gate['detail']}{'  ' + figures if figures else ''}"
        timing = trial["duel"] or trial["timing"]
        if timing:
            yield f"    timed     {speedup_text(timing)}"
        if worst := worst_nodes_text(trial):
            yield f"    worst     {worst}"
        if trial["failure"]:
            yield f"    failure   {trial['failure']}"
        if to_do := advice(trial):
            yield f"    advice    {to_do}"
        for flag in trial.get("flags", ()):
            yield f"    note      {flag}"


def refusal_lines(decision: Plain) -> Iterator[str]:
    """What was not even tried: the subject, who refused it, why, and where the reason comes from."""
    for refusal in decision["refusals"]:
        source = f"  [{refusal['source']}]" if refusal["source"] else ""
        yield f"{refusal['subject']}: {refusal['reason']} ({refusal['by']}){source}"


def rule_lines(decision: Plain) -> Iterator[str]:
    """Every rule that fired, highest first: what it wanted, and which rule it lost to."""
    for verdict in decision.get("rules", ()):
        lost = f"   LOST to {verdict['lost_to']}" if verdict["lost_to"] else ""
        yield f"{verdict['rule']} ({verdict['priority']}) {verdict['kind']}: {verdict['wanted']}{lost}"


def key_lines(key: Plain, others: Sequence[Plain] = ()) -> Iterator[str]:
    """The key field by field; under each, what other entries of the same model have there instead."""
    for name in KEY_FIELDS:
        yield f"    {name:<7} {key[name]}"
        for value in dict.fromkeys(other[name] for other in others if other[name] != key[name]):
            yield f"        cached: {value}"


def _line(label: str, text: str) -> str:
    return f"{label:<14}{text}"
