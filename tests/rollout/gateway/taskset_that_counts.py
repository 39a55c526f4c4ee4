"""A taskset of verifiers whose environment asks twice and is worth what was said; one of its tasks fails."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]


class CountsConfig(vf.TasksetConfig):
    tasks: int = 6
    fails: int = -1


class CountsData(vf.TaskData):
    fails: bool = False


class CountsTask(vf.Task[CountsData, vf.State, vf.TaskConfig]):
    pass


class CountsTaskset(vf.Taskset[CountsTask, CountsConfig]):
    def load(self):
        for number in range(self.config.tasks):
            fails = number == self.config.fails
            system = None if number % 2 else "be brief"
            data = CountsData(name=f"n{number}", prompt=f"say {number}", system_prompt=system, fails=fails)
            yield CountsTask(data, self.config.task)


class CountsEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class CountsEnv(vf.Env[CountsEnvConfig]):
    async def run(self, task, agents):
        print("what an environment prints is no answer")
        if task.data.fails:
            raise ValueError("of its own")
        async with agents.player.interaction(task) as interaction:
            first = await interaction.turn()
            second = await interaction.turn("again:")
        said = first.last_reply + second.last_reply
        interaction.trace.record_reward("ascii", sum(one.isascii() for one in said) / 16, 1.0)


__all__ = ["CountsEnv", "CountsTaskset"]
