"""A taskset of verifiers: say something, and be worth the share of small letters in eight of what was said."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]


class LettersConfig(vf.TasksetConfig):
    words: int = 24


class LettersTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def small(self, trace) -> float:
        return min(8, sum("a" <= one <= "z" for one in trace.last_reply)) / 8


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self):
        for number in range(self.config.words):
            yield LettersTask(vf.TaskData(name=str(number), prompt=f"say {number}"), self.config.task)


__all__ = ["LettersTaskset"]
