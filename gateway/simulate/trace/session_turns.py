"""Session turns: links each line of a trace that comes a gap after the end of an earlier line to that line.

Such a line stands after the line that it waits for. It gets the time of the first line of its chain, so that the
simulation has read it when it is due.
"""

from dataclasses import replace

from gateway.simulate.trace.formats import TraceCall


class SessionTurns:
    """The latest call of each session, by tenant and session, in a trace that is read line by line. From these,
    `linked` finds the earlier call that a call with a `gap_s` waits for, and notes it in the call: the call arrives
    `gap_s` seconds after the end of that earlier call. Mutable.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], TraceCall] = {}
        self._count = 0

    def linked(self, tenant: str, call: TraceCall) -> TraceCall:
        """The call with the number of the call that it waits for. Raises ValueError if its session has no line."""
        program_id = call.program_id
        if program_id is None or (not call.turn and call.gap_s is None):
            return call
        if call.gap_s is not None:
            before = self._latest.get((tenant, call.after or program_id))
            if before is None:
                raise ValueError(f"no line above is of session '{call.after or program_id}', which gap_s needs")
            call = replace(call, at_s=before.at_s, waited_for=before.number, think_s=call.gap_s)
        self._count += 1
        self._latest[tenant, program_id] = call = replace(call, number=self._count)
        return call
