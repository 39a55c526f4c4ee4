"""Programs that are not trusted run here, with nothing to reach and nothing to gain.

    with Sandbox(Limits(seconds=2)) as box:
        box.run(program, stdin)            # -> Outcome(kind, stdout, stderr, detail, seconds)
        with box.session(program) as s:    # its functions, called with plain values
            s.call("f", codec.encode((1, 2)))

A zygote isolates itself once and forks a fresh child for every program (zygote, layers, inside); the supervisor talks
to the child over pipes with a deadline (box, job); judge says what passed, and says it here: no expected value and no
verdict is ever in the process that runs the program.
"""

from groupwise.rewards.sandbox.box import ACCEPTED, Sandbox
from groupwise.rewards.sandbox.job import Kind, Layers, Limits, Outcome

__all__ = ["ACCEPTED", "Kind", "Layers", "Limits", "Outcome", "Sandbox"]
