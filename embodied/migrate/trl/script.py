"""Keys of a Python script that calls TRL's ``GRPOConfig`` and ``GRPOTrainer``. The script is parsed, and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from embodied.errors import ConfigError
from embodied.migrate.trl.values import Names, called
from embodied.schema.others.translation import Unresolved

POSITIONAL = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class")
"""Arguments of ``GRPOTrainer`` in their order."""
FILES = ("json", "csv", "parquet")
"""Kinds of files that ``load_dataset`` reads with ``data_files``."""
HARMLESS = ("shuffle", "with_format", "set_format")
"""Methods of a data set that change no row."""
NO_CALL = "write the values into a YAML file, as trl grpo --config takes it, and give that"


def read_script(text: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """Returns TRL's keys with the values that a script gives them, and remarks.

    Args:
        text: the script.
        name: its file, for messages.

    Raises:
        ConfigError: it is no Python, or makes no ``GRPOTrainer`` or ``GRPOConfig``.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: {error.msg}", "correct the script") from None
    return _Script(tree, name).read()


class _Script:
    def __init__(self, tree: ast.Module, name: str) -> None:
        self.tree, self.name, self.names = tree, name, Names.of(tree)
        self.remarks: list[str] = []

    def read(self) -> tuple[dict[str, Any], list[str]]:
        trainer, config = self._of("GRPOTrainer"), self._of("GRPOConfig")
        given = {} if trainer is None else self._arguments(trainer)
        if isinstance(own := self.names.value(given["args"]) if "args" in given else None, ast.Call):
            config = own if called(self.names, own, "GRPOConfig") else config
        if config is None and (trainer is None or own is not None):
            raise ConfigError(f"{self.name} has no call of GRPOConfig with its values", NO_CALL)
        keys = {} if config is None else self._config(config)
        for key, node in given.items():
            keys |= self._of_trainer(key, node) if key != "args" else {}
        return keys, self.remarks

    def _of(self, name: str) -> ast.Call | None:
        """The call with the most arguments; a remark says where there are several."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and called(self.names, node, name)]
        if not found:
            return None
        best = max(found, key=lambda call: len(call.args) + len(call.keywords))
        if len(found) > 1:
            self.remarks.append(f"of {len(found)} calls of {name} that in line {best.lineno} counts")
        return best

    def _arguments(self, call: ast.Call) -> dict[str, ast.expr]:
        named = {one.arg: one.value for one in call.keywords if one.arg is not None}
        return {**dict(zip(POSITIONAL, call.args, strict=False)), **named}

    def _config(self, call: ast.Call) -> dict[str, Any]:
        keys: dict[str, Any] = {"output_dir": self.names.known(call.args[0])} if call.args else {}
        for one in call.keywords:
            value = self.names.known(one.value)
            if one.arg is not None:
                keys[one.arg] = value
            elif isinstance(value, dict):
                keys |= value
            else:
                keys[f"**{ast.unparse(one.value)}"] = value
        return keys | dict(self._set_later(call))

    def _set_later(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        """What is assigned to attributes of the configuration: ``config.beta = 0.1``."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                if isinstance(target, ast.Attribute) and self.names.value(target.value) is call:
                    yield target.attr, self.names.known(node.value)

    def _of_trainer(self, key: str, node: ast.expr) -> dict[str, Any]:
        """The keys that an argument of the trainer gives."""
        value = self.names.value(node)
        if isinstance(value, ast.Constant) and value.value is None:
            return {}
        if key == "model":
            return self._model(value)
        if key == "reward_funcs":
            return self._rewards(value)
        if key in ("train_dataset", "eval_dataset"):
            return self._dataset(key, value)
        if key == "processing_class" and called(self.names, value, "from_pretrained"):
            assert isinstance(value, ast.Call)
            return {key: self.names.known(value.args[0])} if value.args else {}
        if key == "peft_config" and called(self.names, value, "LoraConfig"):
            assert isinstance(value, ast.Call)
            return {"use_peft": True, "peft_config.peft_type": "LORA", **self._prefixed("peft_config.", value)}
        if key == "quantization_config" and called(self.names, value, "BitsAndBytesConfig"):
            assert isinstance(value, ast.Call)
            return self._prefixed("quantization_config.", value)
        return {key: self.names.known(value)}

    def _prefixed(self, start: str, call: ast.Call) -> dict[str, Any]:
        return {f"{start}{one.arg or '**'}": self.names.known(one.value) for one in call.keywords}

    def _model(self, value: ast.expr) -> dict[str, Any]:
        if called(self.names, value, "from_pretrained"):
            assert isinstance(value, ast.Call)
            name = {"model_name_or_path": self.names.known(value.args[0])} if value.args else {}
            return {**name, **self._prefixed("model_init_kwargs.", value)}
        known = self.names.known(value)
        return {
            "model_name_or_path" if isinstance(known, str) and not isinstance(known, Unresolved) else "model": known
        }

    def _rewards(self, value: ast.expr) -> dict[str, Any]:
        nodes = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        found = [self._reward(node) for node in nodes]
        models = [one for one in found if isinstance(one, str) and one.startswith("model:")]
        functions = [one for one in found if one not in models]
        if len(models) > 1 or (models and any(isinstance(one, Unresolved) for one in found)):
            return {"reward_funcs": Unresolved(ast.unparse(value))}
        keys: dict[str, Any] = {"reward_funcs": functions} if functions else {}
        return keys | ({"reward_model_name_or_path": models[0].removeprefix("model:")} if models else {})

    def _reward(self, node: ast.expr) -> Any:
        """A reward as the YAML file names it; of a function of the script its name, and a model behind ``model:``."""
        value = self.names.value(node)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return f"model:{value.value}"
        if isinstance(value, ast.Name) and value.id in self.names.functions:
            return {"name": value.id}
        if isinstance(value, ast.Name | ast.Attribute) and (dotted := self.names.dotted(value)) != ast.unparse(value):
            return dotted
        if called(self.names, value, "get_soft_overlong_punishment"):
            assert isinstance(value, ast.Call)
            names = dict(zip(("max_completion_len", "soft_punish_cache"), value.args, strict=False))
            names |= {str(one.arg): one.value for one in value.keywords}
            return {
                "name": "get_soft_overlong_punishment",
                **{key: self.names.known(one) for key, one in names.items()},
            }
        return Unresolved(ast.unparse(node))

    def _dataset(self, key: str, value: ast.expr) -> dict[str, Any]:
        """The keys of a data set: its name or files, its part, and what code makes of its rows."""
        side = "" if key == "train_dataset" else "eval_"
        if isinstance(value, ast.Subscript):
            part = {f"dataset_{'test' if side else 'train'}_split": self.names.known(value.slice)}
            return self._dataset(key, self.names.value(value.value)) | part
        if not isinstance(value, ast.Call):
            return {key: self.names.known(value)}
        method = _last_name(value)
        if method == "load_dataset":
            return self._loaded(side, value)
        if method in ("from_json", "from_csv", "from_parquet") and value.args:
            return {f"{side}dataset_name": _listed(self.names.known(value.args[0]))}
        if isinstance(value.func, ast.Attribute):
            inner = self._dataset(key, self.names.value(value.func.value))
            return inner if method in HARMLESS else inner | {f"{key}.{method}": ast.unparse(value)[-80:]}
        return {key: self.names.known(value)}

    def _loaded(self, side: str, call: ast.Call) -> dict[str, Any]:
        given = {str(one.arg): self.names.known(one.value) for one in call.keywords}
        given |= dict(zip(("path", "name"), map(self.names.known, call.args), strict=False))
        split = {f"dataset_{'test' if side else 'train'}_split": given["split"]} if "split" in given else {}
        config = {f"{side}dataset_config": given["name"]} if given.get("name") is not None else {}
        if given.get("path") in FILES and "data_files" in given:
            return {f"{side}dataset_name": _listed(given["data_files"])}
        return {f"{side}dataset_name": given.get("path"), **config, **split}


def _listed(files: Any) -> Any:
    """Files as a list; a mapping of parts to files has the part's."""
    if isinstance(files, dict):
        files = next(iter(files.values()), None)
    return files if isinstance(files, list | Unresolved) else [files]


def _last_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
