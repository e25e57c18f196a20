"""What the objectives ``throughput``, ``tail`` and ``memory`` ask for beside the median latency of one caller.

Peaks of memory below: of the process above what it took before the session was created, in fresh processes, over that
of the default session; onnxruntime 1.32, CPU provider, seven models of the zoo at batch 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.rule import Condition, Rule
from ort_metainfer.deciders.traits import has_thread_pool, runs_on_cpu, whole_cores
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["OBJECTIVE_RULES"]

NO_SPINNING = {"session.intra_op.allow_spinning": "0"}
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
NO_PATTERN = {"enable_mem_pattern": False}


def _aims_at(objective: str) -> Condition:
    return lambda problem: problem.policy.objective == objective


def _has_pool_on_cpu(problem: Problem) -> bool:
    return has_thread_pool(problem) and runs_on_cpu(problem, Strategy())


def _on_cpu(problem: Problem) -> bool:
    return runs_on_cpu(problem, Strategy())


def _limited(problem: Problem) -> bool:
    return problem.cpu.lasting_limit and problem.cpu.cores is not None


def _threads(count: int) -> Strategy:
    """So many threads without spinning; one alone is the caller's own, and has no workers that could spin."""
    if count == 1:
        return ONE_THREAD
    return Strategy(session_options={"intra_op_num_threads": count}, session_config=NO_SPINNING)


def _share_of_a_caller(problem: Problem) -> Iterator[Strategy]:
    yield _threads(max(1, whole_cores(problem) // problem.policy.callers))


def _whole_cores_of_the_quota(problem: Problem) -> Iterator[Strategy]:
    yield _threads(whole_cores(problem))


OBJECTIVE_RULES = (
    Rule(
        "throughput_threads_per_caller",
        92,
        "scheduling",
        "callers at once keep the cores busy by themselves: each caller gets its share of them",
        "onnxruntime documentation: thread management (a caller's thread works in its own run; the session's pool is "
        "shared by all runs); more threads than cores wait for each other (own measurement: 240 against 129 ms)",
        when=(_aims_at("throughput"), _has_pool_on_cpu),
        devices=("cpu",),
        proposes=_share_of_a_caller,
    ),
    Rule(
        "throughput_without_spinning",
        91,
        "scheduling",
        "a worker that spins between two runs takes its core from another caller's run",
        "onnxruntime documentation: thread management, session.intra_op.allow_spinning; own measurement: a session of "
        "5.3 ms took 9.6 ms beside one whose workers spun",
        when=(_aims_at("throughput"), _has_pool_on_cpu),
        devices=("cpu",),
        proposes=lambda p: (Strategy(session_config=NO_SPINNING),),
    ),
    Rule(
        "tail_within_the_quota",
        89,
        "scheduling",
        "who spends the quota on spinning is stopped until the next period: runs of that period take as long",
        "Linux kernel documentation: CFS bandwidth control (a group that spent its quota sleeps until the next "
        "period); spinning counts as use",
        when=(_aims_at("tail"), _limited, _has_pool_on_cpu),
        devices=("cpu",),
        proposes=_whole_cores_of_the_quota,
    ),
    Rule(
        "tail_of_one_thread",
        86,
        "scheduling",
        "a run shared by several threads is as slow as the one that was kept waiting longest; one waits for nobody",
        "own measurement: a recurrent model beside one busy process, 13.3 ms by default, 0.43 ms with one thread",
        when=(_aims_at("tail"), _has_pool_on_cpu),
        devices=("cpu",),
        proposes=lambda p: (ONE_THREAD,),
    ),
    Rule(
        "memory_pattern_off",
        83,
        "scheduling",
        "a memory pattern plans one block for all of a run's values, besides what the run before it took",
        "own measurement of peaks: 0.65 on a 1-D U-Net, 0.80 on a text detector, 0.94 on a ResNet-50, 0.97-1.00 on "
        "four others",
        when=(_aims_at("memory"), _on_cpu),
        devices=("cpu",),
        proposes=lambda p: (Strategy(session_options=NO_PATTERN),),
    ),
    Rule(
        "memory_of_one_layout",
        82,
        "layout",
        "the last levels of the optimiser lay weights out anew, and for a while hold them twice",
        "own measurement of peaks at level basic: 0.60 on a ResNet-50, 0.75 on a text recogniser, 0.86 on a text "
        "detector, 0.96-1.00 on three others, 1.09 on a 1-D U-Net",
        when=(_aims_at("memory"), _on_cpu),
        devices=("cpu",),
        proposes=lambda p: (
            Strategy(session_options={"graph_optimization_level": "basic", **NO_PATTERN}),
            Strategy(session_options={"graph_optimization_level": "basic"}),
        ),
    ),
    Rule(
        "memory_arena_off",
        81,
        "scheduling",
        "an arena grows by doubling and gives nothing back",
        "own measurement of peaks: 0.64 on a 1-D U-Net without arena and pattern, 0.94-1.00 on four others, 1.04-1.10 "
        "on two small convolutional ones",
        when=(_aims_at("memory"), _on_cpu),
        devices=("cpu",),
        proposes=lambda p: (Strategy(session_options={"enable_cpu_mem_arena": False, **NO_PATTERN}),),
    ),
    Rule(
        "memory_of_weights_held_once",
        80,
        "scheduling",
        "weights that are not packed anew, nor taken from the arena, are held once",
        "own measurement of peaks: 0.94 on a ResNet-50, 0.97 on a T5 encoder in 8 bits, 1.00-1.04 on five others",
        when=(_aims_at("memory"), _on_cpu),
        devices=("cpu",),
        proposes=lambda p: (
            Strategy(
                session_config={
                    "session.disable_prepacking": "1",
                    "session.use_device_allocator_for_initializers": "1",
                }
            ),
        ),
    ),
)
