"""The rule library: what is known about sessions, providers and graphs, as declared rules with reasons and sources.

Proposals are ordered by rank, and completed with what their device requires; vetoes hold for every decider's proposals.
Who wins where rules contradict each other: :mod:`~ort_metainfer.deciders.weighing`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ort_metainfer.deciders.contributed import contributed_rules
from ort_metainfer.deciders.rule import SCHEDULING, Rule, is_scheduling
from ort_metainfer.deciders.rules_accelerators import ACCELERATOR_RULES
from ort_metainfer.deciders.rules_fusion import FUSION_RULES
from ort_metainfer.deciders.rules_layout import LAYOUT_RULES
from ort_metainfer.deciders.rules_objectives import OBJECTIVE_RULES
from ort_metainfer.deciders.rules_operators import OPERATOR_RULES
from ort_metainfer.deciders.rules_policy import IsLossy, policy_rules
from ort_metainfer.deciders.rules_precision import PRECISION_RULES
from ort_metainfer.deciders.rules_precision_devices import DEVICE_PRECISION_RULES
from ort_metainfer.deciders.rules_providers import PROVIDER_RULES
from ort_metainfer.deciders.rules_scheduling import SCHEDULING_RULES
from ort_metainfer.deciders.rules_shapes import SHAPE_RULES
from ort_metainfer.deciders.traits import capabilities_of, provider_objections
from ort_metainfer.deciders.weighing import Claim, complete, proposals_of, weigh
from ort_metainfer.decision import Proposal, Refusal, RuleVerdict, Trial
from ort_metainfer.errors import ProviderError, SettingsError, StrategyError
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = [
    "SCHEDULING",
    "Rule",
    "RuleLibrary",
    "all_rules",
    "is_scheduling",
    "known_rules",
    "provider_is_lossy",
    "shipped_rules",
]

FAMILIES = (
    SCHEDULING_RULES,
    OBJECTIVE_RULES,
    PROVIDER_RULES,
    ACCELERATOR_RULES,
    PRECISION_RULES,
    DEVICE_PRECISION_RULES,
    SHAPE_RULES,
    FUSION_RULES,
    LAYOUT_RULES,
    OPERATOR_RULES,
)
"""Those whose rules rest on nothing but the problem; the family of the policy asks whether a strategy is lossy."""

ADAPTER = "the provider's adapter"


def provider_is_lossy(strategy: Strategy) -> bool:
    """Whether the strategy's provider says that it may compute float32 models in less.

    Raises:
        ProviderError: no adapter knows the provider.
        StrategyError: the provider has no such option or value.
    """
    if strategy.provider is None:
        return False
    from ort_metainfer.providers import get_provider

    return get_provider(strategy.provider).is_lossy(strategy)


def shipped_rules(is_lossy: IsLossy = provider_is_lossy) -> tuple[Rule, ...]:
    """The rules of this package, highest rank first, names in order where it is equal."""
    return _in_order([*policy_rules(is_lossy), *(rule for family in FAMILIES for rule in family)])


def all_rules(is_lossy: IsLossy = provider_is_lossy) -> tuple[Rule, ...]:
    """The same with third parties' rules; of one name ours stands."""
    ours = shipped_rules(is_lossy)
    names = {rule.name for rule in ours}
    return _in_order([*ours, *(rule for rule in contributed_rules() if rule.name not in names)])


def _in_order(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: (*(-part for part in rule.rank), rule.name)))


def known_rules(names: Iterable[str]) -> tuple[tuple[str, ...], SettingsError | None]:
    """Those of ``names`` that are rules, and what is wrong with the first that is none; None where all are."""
    known = {rule.name for rule in all_rules()}
    found: list[str] = []
    unknown: list[str] = []
    for name in names:
        (found if name in known else unknown).append(name)
    if not unknown:
        return tuple(found), None
    choice = ", ".join(sorted(known))
    return tuple(found), SettingsError(f"there is no rule {unknown[0]!r} to switch off; known: {choice}")


class RuleLibrary:
    """Proposals, requirements and vetoes of all rules.

    Args:
        disabled: names of rules to leave out.
        is_lossy: whether a strategy may compute float32 models in less; by default the provider's adapter is asked.
        rules: other rules than all there are, for tests.

    Raises:
        SettingsError: ``disabled`` names a rule there is not.
    """

    name = "rules"

    def __init__(
        self,
        disabled: Collection[str] = (),
        is_lossy: IsLossy = provider_is_lossy,
        rules: Sequence[Rule] | None = None,
    ) -> None:
        found = all_rules(is_lossy) if rules is None else _in_order(rules)
        if disabled and rules is None:
            _, fault = known_rules(disabled)
            if fault is not None:
                raise fault
        self.rules = tuple(rule for rule in found if rule.name not in disabled)
        self._applying: tuple[Problem, tuple[Rule, ...]] | None = None
        self._weighed: tuple[Problem, dict[Strategy, Claim]] | None = None
        self._refused: tuple[Problem, dict[Strategy, Refusal | None]] | None = None

    def refuse(self, problem: Problem, strategy: Strategy) -> Refusal | None:
        """What stands against ``strategy``, whoever proposed it, or None.

        That is a veto that no rule which wants the strategy outranks, a requirement that it does not meet, or its
        provider's adapter: one that does not take it, or states that it would take nothing of the graph. Worked out
        once for a problem that is asked about again.
        """
        if self._refused is None or self._refused[0] is not problem:
            self._refused = (problem, {})
        known = self._refused[1]
        if strategy not in known:
            known[strategy] = self._refusal_of(problem, strategy)
        return known[strategy]

    def _refusal_of(self, problem: Problem, strategy: Strategy) -> Refusal | None:
        try:
            verdict = weigh(self.applying(problem), problem, strategy, None)
            if verdict.against is not None and not verdict.against.is_binding:
                verdict = weigh(self.applying(problem), problem, strategy, self._claims(problem).get(strategy))
        except (ProviderError, StrategyError) as error:
            return Refusal(strategy.describe(), f"{self.name}/adapter", str(error), ADAPTER)
        if verdict.against is not None:
            return self._refusal(verdict.against, problem, strategy.describe())
        completion = complete(self.applying(problem), problem, strategy)
        if completion.lacking is not None or completion.strategy != strategy:
            return self._refusal(completion.lacking or completion.added[0], problem, strategy.describe())
        objections = provider_objections(problem, strategy)
        if not objections:
            return None
        source = capabilities_of(str(strategy.provider)).constraints.source
        return Refusal(strategy.describe(), f"{self.name}/adapter", "; ".join(objections), source)

    def complete(self, problem: Problem, strategy: Strategy) -> tuple[Strategy, str]:
        """``strategy`` with what rules require of it, as far as that can be added; and their reasons."""
        completion = complete(self.applying(problem), problem, strategy)
        return completion.strategy, "; ".join(f"{r.explain(problem)} (rule {r.name})" for r in completion.added)

    def completed(self, problem: Problem, proposal: Proposal) -> Proposal:
        """The proposal with what rules require of its strategy, as far as that can be added; whoever made it."""
        strategy, reasons = self.complete(problem, proposal.strategy)
        if strategy == proposal.strategy:
            return proposal
        return replace(proposal, strategy=strategy, reason=f"{proposal.reason}; {reasons}")

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """What is ruled out for this problem as a whole, then proposals by rank, completed, each strategy once.

        A proposal against which a veto stands becomes that rule's refusal, in its place. Nothing in ``history`` is
        proposed again.
        """
        ruled_out = self._ruled_out(problem)
        yield from (self._refusal(rule, problem, rule.subject) for rule in ruled_out)
        reported = {f"{self.name}/{rule.name}" for rule in ruled_out}
        tried = {trial.strategy for trial in history}
        for strategy, claim in self._claims(problem).items():
            if strategy in tried or strategy.is_default:
                continue
            refusal = self.refuse(problem, strategy)
            if refusal is None:
                yield self._proposal(claim, problem)
            elif refusal.by not in reported:
                yield refusal

    def verdicts(self, problem: Problem) -> tuple[RuleVerdict, ...]:
        """Which rules fired for this problem, what each wanted, and which lost to whom; in order of rank."""
        told: dict[tuple[str, str, str], RuleVerdict] = {}
        for verdict in self._told(problem):
            told.setdefault((verdict.rule, verdict.kind, verdict.wanted), verdict)
        rank = {rule.name: place for place, rule in enumerate(self.rules)}
        return tuple(sorted(told.values(), key=lambda verdict: rank[verdict.rule]))

    def _told(self, problem: Problem) -> Iterator[RuleVerdict]:
        required: dict[Rule, list[str]] = {}
        for rule in self._ruled_out(problem):
            yield RuleVerdict(rule.name, rule.priority, "forbids", rule.subject)
        for strategy, claim in self._claims(problem).items():
            if strategy.is_default:
                continue
            refusal = self.refuse(problem, strategy)
            winner = "" if refusal is None else refusal.by.removeprefix(f"{self.name}/")
            text = strategy.describe()
            for rule in claim.rules:
                yield RuleVerdict(rule.name, rule.priority, "proposes", text, winner)
            for rule in claim.completion.added:
                required.setdefault(rule, []).append(text)
            for rule, stronger in claim.completion.overruled:
                yield RuleVerdict(rule.name, rule.priority, "requires", f"otherwise than {text}", stronger.name)
            yield from self._vetoes_told(problem, claim, winner)
        for rule, texts in required.items():
            more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
            yield RuleVerdict(rule.name, rule.priority, "requires", f"{texts[0]}{more}")

    def _vetoes_told(self, problem: Problem, claim: Claim, winner: str) -> Iterator[RuleVerdict]:
        best = max(claim.rules, key=lambda rule: rule.rank).name
        if winner:
            against = next((rule for rule in self.rules if rule.name == winner), None)
            if against is not None and against.forbids is not None and not against.subject:
                yield RuleVerdict(against.name, against.priority, "forbids", claim.strategy.describe())
            return
        for rule in weigh(self.applying(problem), problem, claim.strategy, claim).outranked:
            yield RuleVerdict(rule.name, rule.priority, "forbids", claim.strategy.describe(), best)

    def _ruled_out(self, problem: Problem) -> list[Rule]:
        return [rule for rule in self.applying(problem) if rule.subject and rule.matters(problem)]

    def applying(self, problem: Problem) -> tuple[Rule, ...]:
        """The rules that have anything to say about ``problem``; worked out once where it is asked about again."""
        if self._applying is None or self._applying[0] is not problem:
            self._applying = (problem, tuple(rule for rule in self.rules if rule.applies(problem)))
        return self._applying[1]

    def _claims(self, problem: Problem) -> dict[Strategy, Claim]:
        """What the rules propose for ``problem``; worked out once for a problem that is asked about again."""
        if self._weighed is None or self._weighed[0] is not problem:
            claims = {claim.strategy: claim for claim in proposals_of(self.applying(problem), problem)}
            self._weighed = (problem, claims)
        return self._weighed[1]

    def _proposal(self, claim: Claim, problem: Problem) -> Proposal:
        rules = (*claim.rules, *claim.completion.added)
        reasons = "; ".join(f"{rule.explain(problem)} (rule {rule.name})" for rule in rules)
        return Proposal(claim.strategy, self.name, reasons, "; ".join(rule.source for rule in rules))

    def _refusal(self, rule: Rule, problem: Problem, subject: str) -> Refusal:
        return Refusal(subject, f"{self.name}/{rule.name}", rule.explain(problem), rule.source)
