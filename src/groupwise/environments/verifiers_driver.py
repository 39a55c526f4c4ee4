"""Lists the problems of an environment of verifiers 0.4, and plays them one at a time, as another process asks it to.

Run by an interpreter that has verifiers, with nothing of this package. A line of JSON comes, and one goes out:

    {"count": 20}                          ->  {"problems": [{"name": ..., "messages": [...]}, ...]}
    {"task": 3, "url": "http://.../v1"}    ->  {"reward": 0.5}
    anything that fails                    ->  {"error": one line}
"""

import asyncio
import itertools
import json
import os
import queue
import shutil
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what environments print is no answer
    asked = queue.SimpleQueue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    sys.path[0], played = os.getcwd(), None
    while True:
        said = asked.get()
        try:
            played = played or Played(json.loads(sys.argv[1]))
            answers.write(json.dumps(played.answer(**said)) + "\n")
        except Exception as error:
            answers.write(json.dumps({"error": _line(error)}) + "\n")


class Played:
    """An environment, each of whose seats is the policy: by the null harness, unless the environment says another."""

    def __init__(self, env):
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

        if not shutil.which("uv"):  # without it verifiers would load it, and then libraries, from the network
            vf.runtimes.subprocess.SubprocessRuntime.prepare_uv_script = _with_this_interpreter
        taskset = env.setdefault("taskset", {})
        file = Path(taskset.get("id", ""))
        if file.suffix == ".py":
            sys.path.insert(0, str(file.parent))
            taskset["id"] = file.stem
        kind = vf.env_config_type(taskset.get("id", ""), env.get("id", ""))
        plain = vf.default_harness_id(taskset.get("id", "")) == "bash"
        for name, field in kind.model_fields.items():
            if isinstance(seat := field.default, vf.AgentConfig):
                harness = {"harness": {"id": "null"}} if plain and seat.harness is None else {}
                env[name] = {"runtime": {"type": "subprocess"}, **harness, **env.get(name, {})}
        self.vf, self.env = vf, vf.load_environment(kind.model_validate(env))
        self.left, self.tasks = iter(self.env.taskset), []

    def answer(self, count=0, task=0, url=""):
        """List so many problems at most, or play one."""
        self.tasks += itertools.islice(self.left, max(0, max(count, task + 1) - len(self.tasks)))
        if count:
            return {"problems": [_problem(each.data) for each in self.tasks[:count]]}
        return {"reward": asyncio.run(self.play(self.tasks[task], url))}

    async def play(self, task, url):
        """Play a session -> the mean reward of its seats that train. Raises RuntimeError if it failed."""
        client = self.vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        context = self.vf.ModelContext(model="policy", client=client)
        async with self.env.serving():
            episode = await self.env.run_episode(task, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not ok")
        own = [trace.reward for trace in episode.traces if trace.agent.trainable]
        return sum(own) / len(own)


def _read(asked):
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)


async def _with_this_interpreter(runtime, script, env=None, *, activate=True):
    await runtime.write("program.py", script.encode() if isinstance(script, str) else script)
    return [sys.executable, str(runtime.workdir / "program.py")]


def _problem(data):
    opened = data.prompt if isinstance(data.prompt, list) else [{"role": "user", "content": data.prompt or ""}]
    said = [message if isinstance(message, dict) else message.model_dump(exclude_none=True) for message in opened]
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return {"name": data.name or "", "messages": system + said}


def _line(error: Any) -> str:
    """Say in one line what went wrong; of arguments, which ones."""
    if callable(getattr(error, "errors", None)):
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    if isinstance(error, ModuleNotFoundError):
        own = error.name in ("verifiers", "verifiers.v1")
        return f"{sys.executable} has no verifiers 0.4" if own else str(error).split(". ")[0]
    said = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    return " ".join(said.split())[:1000]


if __name__ == "__main__":
    main()
