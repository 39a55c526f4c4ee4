"""A model whose weights stay in the files of its folder: each is read when it is used, and nothing holds all of them.

Its parameters are without memory (device meta), its buffers are real. The folder is the one that its configuration
names, as transformers has it (`name_or_path`).
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from groupwise.core.errors import RunError, one_line
from groupwise.core.files.tensor_layout import TensorBytes, file_layout, read_tensor
from groupwise.models.files.folder import loading, read_generation, weight_files


class Weights:
    """The weights of a model, one at a time: those that it has, and of parameters without memory what its files hold.

    The parts of such a model have its files too, where these name a part's weights as the model does.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._places: Mapping[str, tuple[Path, TensorBytes]] = {}
        self._names = names_of_entries(model)
        if is_unread(model):
            folder = Path(model.config.name_or_path)
            self._places = {
                name: (path, place)
                for path in weight_files(folder, str(folder))
                for name, place in file_layout(path).places.items()
            }

    def whole(self, x: Tensor) -> Tensor:
        """Return an entry of the model's state, in its type. Raises RunError if the files have changed since."""
        if not x.is_meta:
            return x
        names = self._names[id(x)]
        try:
            name = next(name for name in (*names, *map(self._inside, names)) if name in self._places)
            return read_tensor(*self._places[name]).to(x.dtype)
        except (OSError, ValueError, StopIteration) as error:
            folder = self._model.config.name_or_path
            raise RunError(f"{folder}: {names[0]} cannot be read there any more: {one_line(error)}") from None

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter by its name."""
        return ((name, self.whole(x)) for name, x in self._model.named_parameters())

    @property
    def fits(self) -> bool:
        """True if the files hold each entry of the model's state once, by one of its names, and nothing else."""
        state = self._model.state_dict(keep_vars=True)
        entries = {id(x): x for x in state.values()}
        found = [[name for name in self._names[key] if name in self._places] for key in entries]
        return (
            all(len(names) == 1 for names in found)
            and len(found) == len(self._places)
            and all(
                self._is_of(entry, self._places[name]) for entry, (name,) in zip(entries.values(), found, strict=True)
            )
        )

    @staticmethod
    def _is_of(entry: Tensor, at: tuple[Path, TensorBytes]) -> bool:
        _, place = at
        return entry.is_meta and place.dtype.is_floating_point and place.shape == tuple(entry.shape)

    def _inside(self, name: str) -> str:
        return f"{self._model.base_model_prefix}.{name}"


def names_of_entries(model: nn.Module) -> dict[int, list[str]]:
    """Map the id of each entry of a model's state to all of its names: a tied head is the embedding."""
    names: dict[int, list[str]] = {}
    for name, entry in model.state_dict(keep_vars=True).items():
        names.setdefault(id(entry), []).append(name)
    return names


def is_unread(model: nn.Module) -> bool:
    """Tell if a model has parameters without memory."""
    return any(parameter.is_meta for parameter in model.parameters())


def device_of(model: nn.Module) -> torch.device:
    """Return where a model computes: where the first of its tensors is that has memory; meta if none has."""
    there = (x.device for x in (*model.parameters(), *model.buffers()) if not x.is_meta)
    return next(there, torch.device("meta"))


def unread_model(kind: Any, folder: Path, what: str, config: Any, dtype: torch.dtype) -> Any:
    """Make the model of transformers' `kind` in a folder, dropout off, its weights in the files.

    None if the files have other names, shapes or kinds of numbers than the model, or numbers that are not finite, or if
    the model has no buffer by which it is known where it computes: then it is read whole, which says what is wrong.
    """
    with loading(what), parameters_without_memory():
        model = kind.from_config(copy.deepcopy(config), dtype=dtype, trust_remote_code=False)
    try:
        weights = Weights(model)
        if not weights.fits or device_of(model).type == "meta":
            return None
        if not all(torch.stack(torch.aminmax(x)).isfinite().all() for _, x in weights.named() if x.numel()):
            return None
    except (OSError, ValueError):
        return None
    model.generation_config = read_generation(folder, what) or model.generation_config
    return model.eval()


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Let every parameter of a model that is made inside be without memory, while its buffers are real."""

    def placeless(_: nn.Module, name: str, parameter: Any) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:  # it is tied
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(placeless)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def running(model: nn.Module) -> Iterator[None]:
    """Let a model run that is in its files: a module's own weights are read before it runs inside, and gone behind it.

    A model with memory runs as it is.
    """
    own = {
        module: {n: p for n, p in module._parameters.items() if p is not None and p.is_meta}
        for module in model.modules()
    }
    unread = {module: parameters for module, parameters in own.items() if parameters}
    weights = Weights(model) if unread else None

    def read(module: nn.Module, _: Any) -> None:
        assert weights is not None
        for name, parameter in unread[module].items():
            module._parameters[name] = nn.Parameter(weights.whole(parameter), requires_grad=False)

    def let_go(module: nn.Module, *_: Any) -> None:
        module._parameters.update(unread[module])

    with ExitStack() as stack:
        for module in unread:
            stack.callback(module.register_forward_pre_hook(read).remove)
            stack.callback(module.register_forward_hook(let_go, always_call=True).remove)
        yield
