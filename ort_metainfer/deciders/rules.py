"""The rule library: what is known about sessions, providers and graphs, as declared rules with reasons and sources.

Proposals are ordered by priority; a veto of any rule holds for every decider's proposals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ort_metainfer.deciders.rule import SCHEDULING, Rule, is_scheduling
from ort_metainfer.deciders.rules_graph import GRAPH_RULES
from ort_metainfer.deciders.rules_policy import IsLossy, policy_rules
from ort_metainfer.deciders.rules_providers import PROVIDER_RULES
from ort_metainfer.deciders.rules_rewrites import REWRITE_RULES
from ort_metainfer.deciders.rules_scheduling import SCHEDULING_RULES
from ort_metainfer.deciders.traits import capabilities_of, provider_objections
from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.errors import ProviderError, SettingsError, StrategyError
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["SCHEDULING", "Rule", "RuleLibrary", "all_rules", "is_scheduling", "provider_is_lossy"]


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


def all_rules(is_lossy: IsLossy = provider_is_lossy) -> tuple[Rule, ...]:
    """Every rule, highest priority first, names in order where it is equal."""
    rules = (*policy_rules(is_lossy), *SCHEDULING_RULES, *PROVIDER_RULES, *GRAPH_RULES, *REWRITE_RULES)
    return tuple(sorted(rules, key=lambda rule: (-rule.priority, rule.name)))


class RuleLibrary:
    """Proposals and vetoes of all rules.

    Args:
        disabled: names of rules to leave out.
        is_lossy: whether a strategy may compute float32 models in less; by default the provider's adapter is asked.

    Raises:
        SettingsError: ``disabled`` names a rule there is not.
    """

    name = "rules"

    def __init__(self, disabled: Collection[str] = (), is_lossy: IsLossy = provider_is_lossy) -> None:
        rules = all_rules(is_lossy)
        known = {rule.name for rule in rules}
        unknown = sorted(set(disabled) - known)
        if unknown:
            raise SettingsError(f"there is no rule {unknown[0]!r} to disable; known: {', '.join(sorted(known))}")
        self.rules = tuple(rule for rule in rules if rule.name not in disabled)

    def refuse(self, problem: Problem, strategy: Strategy) -> Refusal | None:
        """The first veto against ``strategy``, whoever proposed it, or None.

        A strategy that its provider's adapter does not take is refused with the adapter's words, and so is one for a
        graph of which the provider, by what its adapter states, would take nothing.
        """
        try:
            rule = next((rule for rule in self.rules if rule.vetoes(problem, strategy)), None)
        except (ProviderError, StrategyError) as error:
            return Refusal(strategy.describe(), f"{self.name}/adapter", str(error), "the provider's adapter")
        if rule is not None:
            return self._refusal(rule, problem, strategy.describe())
        objections = provider_objections(problem, strategy)
        if not objections:
            return None
        source = capabilities_of(str(strategy.provider)).constraints.source
        return Refusal(strategy.describe(), f"{self.name}/adapter", "; ".join(objections), source)

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """What is ruled out for this problem as a whole, then proposals by priority, each strategy once.

        A proposal that another rule vetoes becomes that rule's refusal, in its place. Nothing in ``history`` is
        proposed again.
        """
        ruled_out = [rule for rule in self.rules if rule.subject and rule.applies(problem) and rule.matters(problem)]
        yield from (self._refusal(rule, problem, rule.subject) for rule in ruled_out)
        reported = {f"{self.name}/{rule.name}" for rule in ruled_out}
        tried = {trial.strategy for trial in history}
        for strategy, rules in self._wanted(problem).items():
            if strategy in tried or strategy.is_default:
                continue
            refusal = self.refuse(problem, strategy)
            if refusal is None:
                yield self._proposal(strategy, rules, problem)
            elif refusal.by not in reported:
                yield refusal

    def _wanted(self, problem: Problem) -> dict[Strategy, list[Rule]]:
        wanted: dict[Strategy, list[Rule]] = {}
        for rule, strategy in self._pairs(problem):
            wanted.setdefault(strategy, []).append(rule)
        return wanted

    def _pairs(self, problem: Problem) -> Iterator[tuple[Rule, Strategy]]:
        return ((rule, strategy) for rule in self.rules for strategy in rule.proposals(problem))

    def _proposal(self, strategy: Strategy, rules: Sequence[Rule], problem: Problem) -> Proposal:
        reasons = "; ".join(f"{rule.explain(problem)} (rule {rule.name})" for rule in rules)
        return Proposal(strategy, self.name, reasons, "; ".join(rule.source for rule in rules))

    def _refusal(self, rule: Rule, problem: Problem, subject: str) -> Refusal:
        return Refusal(subject, f"{self.name}/{rule.name}", rule.explain(problem), rule.source)
