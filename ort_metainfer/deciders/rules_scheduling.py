"""Threads, spinning, execution mode: what depends on how many cores there are and on what else runs on them.

onnxruntime's idle workers spin for about 50 ms after each run (own measurement), so measurements of other sessions
made within that time measure the spinning. The figures below were taken with rests in between, unless they say
otherwise; AMD EPYC, two cores, onnxruntime 1.32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.deciders.rule import BINDING_PRIORITY, VETO_PRIORITY, Rule, is_scheduling
from ort_metainfer.deciders.traits import (
    batch_size,
    has_thread_pool,
    is_recurrent,
    is_tiny,
    is_wide,
    runs_on_cpu,
    whole_cores,
)
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["SCHEDULING_RULES"]


XNNPACK = "XnnpackExecutionProvider"
MIN_CORES_FOR_BRANCHES = 4
POOL_OPTIONS = frozenset({"intra_op_num_threads", "inter_op_num_threads"})

FORCE_STOP = Strategy(session_config={"session.force_spinning_stop": "1"})
SPIN_1_MS = Strategy(session_config={"session.intra_op.spin_duration_us": "1000"})
NO_SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})


def _has_pool_on_cpu(problem: Problem) -> bool:
    return has_thread_pool(problem) and runs_on_cpu(problem, Strategy())


def _limited(problem: Problem) -> bool:
    return problem.cpu.lasting_limit and problem.cpu.cores is not None and _has_pool_on_cpu(problem)


def _fractional(problem: Problem) -> bool:
    cores = problem.cpu.cores
    return _limited(problem) and cores is not None and cores % 1 != 0 and whole_cores(problem) > 1


def _threads_of_limit(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(session_options={"intra_op_num_threads": whole_cores(problem)})


def _threads_of_limit_without_spinning(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(
        session_options={"intra_op_num_threads": whole_cores(problem)}, session_config=NO_SPINNING.session_config
    )


def _branches_fit(problem: Problem) -> bool:
    return is_wide(problem) and whole_cores(problem) >= MIN_CORES_FOR_BRANCHES and not is_tiny(problem)


def _two_branches(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(
        session_options={
            "execution_mode": "parallel",
            "inter_op_num_threads": 2,
            "intra_op_num_threads": whole_cores(problem) // 2,
        }
    )


def _more_threads_than_cores(problem: Problem, strategy: Strategy) -> bool:
    counts = [value for name, value in strategy.session_options.items() if name in POOL_OPTIONS]
    return any(isinstance(count, int) and count > whole_cores(problem) for count in counts)


def _repeats_callers_threads(problem: Problem, strategy: Strategy) -> bool:
    """Whether its only load-sensitive option tells another provider how many threads the caller wants."""
    rest = {name: value for name, value in strategy.provider_options.items() if name != "INFERENCE_NUM_THREADS"}
    told = strategy.provider_options.get("INFERENCE_NUM_THREADS")
    without = Strategy(
        provider_options=rest, session_options=strategy.session_options, session_config=strategy.session_config
    )
    return told == problem.policy.pinned.get("intra_op_num_threads") and not is_scheduling(without)


def _is_pipeline(problem: Problem) -> bool:
    return problem.policy.objective == "pipeline"


def _runs_one(problem: Problem) -> bool:
    return batch_size(problem) == 1


def _gives_memory_back(problem: Problem, strategy: Strategy) -> bool:
    options = strategy.session_options
    return options.get("enable_cpu_mem_arena") is False or options.get("enable_mem_reuse") is False


def _xnnpack_alone(problem: Problem, strategy: Strategy) -> Strategy:
    """XNNPACK's threads on all cores, one of onnxruntime's, no spinning; what the caller pinned stays."""
    if strategy.provider != XNNPACK:
        return strategy
    free = not problem.is_pinned("intra_op_num_threads")
    own = {"intra_op_num_threads": 1} if free else {}
    spinning = {} if problem.is_pinned("session.intra_op.allow_spinning") else NO_SPINNING.session_config
    return replace(
        strategy,
        provider_options={"intra_op_num_threads": str(whole_cores(problem)), **strategy.provider_options},
        session_options={**own, **strategy.session_options},
        session_config={**spinning, **strategy.session_config},
    )


SCHEDULING_RULES = (
    Rule(
        "machine_busy",
        BINDING_PRIORITY,
        "scheduling",
        "machine busy ({problem.state.busy_reason}), scheduling left alone",
        "own measurement: beside one busy process one thread ran 1.8-1.9x, on the quiet machine 0.5-0.6x",
        when=(lambda p: p.state.busy_reason is not None and not p.cpu.lasting_limit,),
        forbids=lambda p, strategy: is_scheduling(strategy) and not _repeats_callers_threads(p, strategy),
        subject="scheduling",
        matters=has_thread_pool,
    ),
    Rule(
        "global_thread_pool",
        BINDING_PRIORITY,
        "scheduling",
        "the caller's sessions share the process's thread pool, whose size and spinning no session can change",
        "onnxruntime documentation: SessionOptions.use_per_session_threads, set_global_thread_pool_sizes",
        when=(lambda p: p.is_pinned("use_per_session_threads"),),
        forbids=lambda p, strategy: is_scheduling(strategy) and runs_on_cpu(p, strategy),
        subject="threads and spinning",
    ),
    Rule(
        "xnnpack_threads",
        BINDING_PRIORITY - 1,
        "scheduling",
        "XNNPACK brings threads of its own, which onnxruntime's would spin against",
        "onnxruntime documentation: XNNPACK execution provider, recommended configuration; not run on hardware",
        when=(lambda p: p.device(XNNPACK) is not None, has_thread_pool),
        devices=("cpu",),
        requires=_xnnpack_alone,
    ),
    Rule(
        "pipeline_spinning",
        90,
        "scheduling",
        "idle workers of this session would spin on the cores that the next session of the pipeline needs",
        "own measurement: a session of 5.3 ms took 9.6 ms between runs of another, 5.1 ms with that one's spinning "
        "stopped, bounded to 1 ms or off; option of microsoft/onnxruntime#11841",
        when=(
            _is_pipeline,
            _has_pool_on_cpu,
        ),
        devices=("cpu",),
        proposes=lambda p: (FORCE_STOP, SPIN_1_MS, NO_SPINNING),
    ),
    Rule(
        "threads_of_the_limit",
        85,
        "scheduling",
        "onnxruntime sizes its pool to the machine's cores and does not see that this process may use fewer",
        "microsoft/onnxruntime#29510 (quota), #7207, #10166 (affinity: errors and crashes unless the count is set)",
        when=(_limited,),
        devices=("cpu",),
        proposes=_threads_of_limit,
    ),
    Rule(
        "no_spinning_under_fractional_quota",
        84,
        "scheduling",
        "a spinning worker uses up the fraction of a core that is left, and the whole process is throttled for it",
        "Linux kernel documentation: CFS bandwidth control (a group that spent its quota sleeps until the next "
        "period); spinning counts as use",
        when=(_fractional,),
        devices=("cpu",),
        proposes=_threads_of_limit_without_spinning,
    ),
    Rule(
        "one_thread_for_tiny_models",
        60,
        "scheduling",
        "a run this short has no work to share, and waking a worker costs more than it saves",
        "own measurement: 1.06-1.17x on a classifier of 16 million MACs and 0.55 ms, 1.04x on silero_vad of 0.07 ms "
        "(on another machine 0.80x: to be tried, not taken for granted)",
        when=(
            is_tiny,
            _has_pool_on_cpu,
        ),
        devices=("cpu",),
        proposes=lambda p: (ONE_THREAD,),
    ),
    Rule(
        "one_thread_for_recurrent_at_batch_1",
        55,
        "scheduling",
        "a recurrent step at batch 1 is a chain of matrix-vector products, each too small to share",
        "own measurement: silero_vad 1.04-1.05x; under load 13.3 ms against 0.43 ms",
        when=(
            is_recurrent,
            _runs_one,
            _has_pool_on_cpu,
        ),
        devices=("cpu",),
        proposes=lambda p: (ONE_THREAD,),
    ),
    Rule(
        "parallel_for_wide_graphs",
        20,
        "scheduling",
        "independent branches can keep cores busy that one operator alone cannot",
        "onnxruntime documentation: thread management, sequential against parallel execution; counts are set since "
        "microsoft/onnxruntime#11668 (300 ms with the default count, 80 with two, 30 with one: not each graph gains)",
        when=(
            _branches_fit,
            _has_pool_on_cpu,
        ),
        devices=("cpu",),
        proposes=_two_branches,
    ),
    Rule(
        "parallel_only_for_wide_graphs",
        VETO_PRIORITY,
        "scheduling",
        "parallel execution pays for a second pool and hand-overs that a graph without wide branches never earns back",
        "own measurement: 0.05-0.7x on all of sixteen models; microsoft/onnxruntime#11668, #9800 (hangs after fork)",
        when=(lambda p: not _branches_fit(p),),
        forbids=lambda p, strategy: strategy.session_options.get("execution_mode") == "parallel",
    ),
    Rule(
        "memory_arena_stays",
        VETO_PRIORITY,
        "scheduling",
        "without the arena and reuse every run asks the system for its memory again",
        "own measurement: without the arena 0.73x on a graph network, 0.94x on a MobileNetV3 and a small MLP",
        when=(lambda p: p.policy.objective != "memory",),
        forbids=_gives_memory_back,
    ),
    Rule(
        "no_more_threads_than_cores",
        VETO_PRIORITY,
        "scheduling",
        "more threads than cores wait for each other",
        "own measurement: four threads on two cores took 240 ms, two 129 ms, one 49 ms beside other load",
        when=(lambda p: p.cpu.cores is not None,),
        forbids=_more_threads_than_cores,
    ),
)
