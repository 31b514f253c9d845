"""Faults in how a log was written, as far as the log itself shows them: which there are, and what to do about each.

`kmifqe dataset inspect` reads a log's `Transitions`, and the verdict reads the rows of a `Problem`. Both bring them
into time order as `TimeOrdered`, and `log_faults` measures the same facts on either. What a fault costs depends on
the discount, so levels are left to the verdict (`trust/checks/log.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from kmifqe.io.format import digits, percent
from kmifqe.io.logs.fault_signs import LogFaults

# Of the terminations: a rule that explains the others may be one that a regression cannot write down.
UNEXPLAINED = 0.6
UNEXPLAINED_UNSEEN = (
    0.8  # likewise, where the state that ended an episode was not logged, only the one before
)
MISPLACED = 0.01  # of the rows
RESET_SHARE = 0.1  # of the cuts
ORDER_ERRORS = 3.5  # standard errors: three of 192 shuffled logs exceeded it, one of 160 sound ones did not
MEMORY_ERRORS = 4.5  # standard errors: the largest of dozens exceeds it in one of thousands of logs by chance
COPIED = 0.01  # of the rows
SHOWN = 8  # columns named in a sentence


class Fault(NamedTuple):
    """A fault that a log shows: the name of its check, what was found (no full stop), and what to do about it."""

    name: str
    finding: str
    advice: str


def faults_found(faults: LogFaults) -> tuple[Fault, ...]:
    """Return the faults that the log shows, the worst first."""
    found = (_time_limit, _shuffled, _misplaced, _lost_precision, _copied, _reset, _shifted, _unexplained)
    return tuple(fault for fault in (find(faults) for find in found) if fault is not None)


def _time_limit(faults: LogFaults) -> Fault | None:
    length, ended = faults.spike_length, faults.spike_ended
    if not length:
        return None
    share = (
        f"All {ended:,}" if ended == faults.spike_episodes else f"{ended:,} of the {faults.spike_episodes:,}"
    )
    which = "the longest" if faults.spike_is_longest else "one"
    return Fault(
        "time_limit",
        f"{share} episodes of {which} length, {length:,} steps, are marked as terminated, far more than at other "
        "lengths",
        f"If {length:,} steps is a time limit, mark these ends as timeouts in the log instead of terminals.",
    )


def _shuffled(faults: LogFaults) -> Fault | None:
    if faults.order is None or faults.memory is None:
        return None
    if faults.order >= ORDER_ERRORS or faults.memory <= MEMORY_ERRORS:
        return None
    return Fault(
        "row_order",
        "The states of an episode belong together, but a row tells no more of the next one than of later ones: the "
        "rows seem to be out of order",
        "Write the rows of every episode in the order of time, and log next_observations on every row.",
    )


def _misplaced(faults: LogFaults) -> Fault | None:
    if faults.misplaced <= MISPLACED * faults.rows:
        return None
    return Fault(
        "misplaced_rows",
        f"{faults.misplaced:,} rows after which an episode seems to be cut go on elsewhere in the log: the state "
        "that follows them is that of a row that does not come next",
        "Write the rows of every episode one after the other, in the order of time.",
    )


def _lost_precision(faults: LogFaults) -> Fault | None:
    columns = [f"state {j}" for j in faults.coarse_states[:SHOWN]]
    columns += [f"action {j}" for j in faults.coarse_actions[:SHOWN]]
    columns += ["the reward"] if faults.coarse_rewards else []
    if not columns:
        return None
    return Fault(
        "lost_digits",
        f"Values lie so far from 0 that float32 keeps hardly anything of how they vary ({', '.join(columns)})",
        "Subtract a constant from these columns, in float64, before they are written, and from what "
        "the policy reads.",
    )


def _copied(faults: LogFaults) -> Fault | None:
    if faults.repeated_rows + faults.copied_rows <= COPIED:
        return None
    what = []
    if faults.repeated_rows:
        what.append(f"{percent(faults.repeated_rows)} of the rows repeat the row before")
    if faults.copied_rows:
        what.append(
            f"{percent(faults.copied_rows)} of the rows are, with the rows beside them, exact copies of others"
        )
    return Fault(
        "copied_rows",
        " and ".join(what),
        "Write every row once: remove the copies, and look for what wrote them.",
    )


def _reset(faults: LogFaults) -> Fault | None:
    if faults.reset_cuts < max(2, RESET_SHARE * faults.cuts):
        return None
    return Fault(
        "reset_states",
        f"{faults.reset_cuts:,} of {faults.cuts:,} cut episodes have the first state of the next episode as their "
        "last next state: the system was reset before that state was read",
        "Log the state that the last step led to (final_observation of an environment that resets itself), or "
        "leave it out.",
    )


def _shifted(faults: LogFaults) -> Fault | None:
    if faults.reward_shift == 0.0:
        return None
    return Fault(
        "reward_shift",
        f"After about {percent(faults.reward_shift_from)} of the log, rewards at like states and actions are "
        f"{digits(abs(faults.reward_shift))} {'higher' if faults.reward_shift > 0 else 'lower'} than before",
        "Find out what changed there, and evaluate the part of the log whose rewards are the right ones.",
    )


def _unexplained(faults: LogFaults) -> Fault | None:
    least = UNEXPLAINED if faults.end_states_logged else UNEXPLAINED_UNSEEN
    if faults.ends_unexplained is None or faults.ends_unexplained < least:
        return None
    return Fault(
        "unexplained_ends",
        f"{faults.ends:,} episodes are marked as terminated at states and actions like any others",
        "If they were interrupted from outside, mark these ends as timeouts; if the system does end by chance, "
        "say so with --accept unexplained_ends.",
    )
