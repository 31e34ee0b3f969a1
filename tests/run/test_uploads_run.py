"""Exports that are sent elsewhere: to a hub on the loopback, to stores of fsspec, and what a failure or a stop does."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from beside_runs import LONGEST_S, WAITS, Exportable, Said, hurried, until
from fsspec.implementations.local import LocalFileSystem

from embodied.errors import ConfigError
from embodied.run.folder.beside import exports, uploads
from embodied.run.folder.beside.exports import Exporter
from embodied.run.folder.beside.uploads import Uploads
from embodied.runtime.signals import Stopped, StopSignal
from embodied.schema import CheckpointConfig
from embodied.schema.compose.compose import compose
from embodied.schema.rules.upload_checks import check_uploads
from embodied.tools import upload

ROOT = Path(__file__).parents[2]
TOKEN = "hf_abcdefghijklmnopq"
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)), "lora_adapter/adapter.bin": b"abc"}


class Hub(BaseHTTPRequestHandler):
    """What upload_folder asks of the hub, of files that go into the commit itself."""

    refuses = 0  # the status of each answer
    silent = False
    commits: dict[str, list[dict[str, bytes]]]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.answer({"id": self.path, "siblings": []})

    def do_POST(self) -> None:
        length = self.headers["Content-Length"]
        body = self.rfile.read(int(length)) if length else self.chunks()
        self.asked.append((self.path, self.headers["Authorization"]))
        if self.silent:
            time.sleep(LONGEST_S)
        elif self.path == "/api/repos/create":
            name = f"me/{json.loads(body)['name']}"
            self.answer({"url": f"http://{self.headers['Host']}/{name}", "name": name, **json.loads(body)})
        elif "/preupload/" in self.path:
            names = [one["path"] for one in json.loads(body)["files"]]
            self.answer({"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in names]})
        else:
            lines = [json.loads(line)["value"] for line in body.splitlines()]
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            files = {one["path"]: base64.b64decode(one["content"]) for one in lines if "path" in one}
            self.commits.setdefault(name, []).append({"": lines[0]["summary"].encode(), **files})
            self.answer(
                {"commitUrl": f"http://{self.headers['Host']}/{name}/commit/1", "commitOid": "1" * 40, "success": True}
            )

    def chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()  # a connection that is closed with something unread is reset
        return body

    def answer(self, value: Any) -> None:
        if self.refuses:
            value = {"error": f"no right to write, with {self.headers['Authorization']}"}
        data = json.dumps(value).encode()
        self.send_response(self.refuses or 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    monkeypatch.chdir(tmp_path)
    hurried(monkeypatch)
    kind = type("Own", (Hub,), {"commits": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield kind
        server.shutdown()


def exported(number: int = 1) -> Path:
    folder = Path("runs/run/exports") / f"{number:06d}"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def sending(console: Said, **keys: Any) -> Uploads:
    return Uploads("run", CheckpointConfig(export_safetensors=True, **{"upload_timeout_s": LONGEST_S, **keys}), console)


def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Uploads by lines of shell; $1 is the folder, $3 the address."""
    hurried(monkeypatch)
    monkeypatch.setattr(uploads, "PROGRAM", ("sh", "-c", script, "sh"))


def test_each_export_is_a_commit_on_the_hub_and_a_folder_in_a_store(hub, tmp_path):
    said = Said()
    one = sending(said, upload_hf="all", hf_repo_name="policy", upload_s3=True, s3_bucket=f"file://{tmp_path}/store")
    for number in (1, 2):
        one.exported(exported(number))
        until(lambda: not one._ways[0].queue.goes_on())
    one.finish(StopSignal())
    assert hub.commits == {"me/policy": [{"": f"run 00000{number}".encode(), **FILES} for number in (1, 2)]}
    assert {path.name for path in (tmp_path / "store/outputs/run").iterdir()} == {"000002"}, "the last one alone"
    sent = tmp_path / "store/outputs/run/000002"
    assert {name: (sent / name).read_bytes() for name in FILES} == FILES
    assert said.lines == []
    assert one.rows() == [["uploaded", "hf://policy"], ["uploaded", f"file://{sent}"]]
    assert said.lines == []
    assert {token for _, token in hub.asked} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("place", ["environment", "hf auth login"])
def test_a_refusal_is_said_once_with_the_fix_and_without_the_token(hub, tmp_path, monkeypatch, place):
    if place == "hf auth login":
        monkeypatch.delenv("HF_TOKEN")
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "token").write_text(TOKEN, encoding="utf-8")
    hub.refuses, said = 403, Said()
    one = sending(said, upload_hf="all", hf_repo_name="policy")
    for number in (1, 2):
        one.exported(exported(number))
        until(lambda: not one._ways[0].queue.goes_on())
    one.finish(StopSignal())
    (line,) = said.lines
    assert line.startswith("runs/run/exports/000001 was not uploaded to hf://policy: hf://policy: ")
    assert "no right to write" in line
    assert "fix: give HF_TOKEN a token that may write" in line
    later = f"{uploads.PROGRAM[1]} {uploads.PROGRAM[2]} runs/run/exports/00000%d --to hf://policy"
    assert one.rows() == [[f"00000{number} not uploaded", f"python {later % number}"] for number in (1, 2)]
    assert TOKEN not in f"{said.lines} {one.rows()}"
    assert "no right to write, with Bearer (hidden)" in line
    one.close()
    assert len(said.lines) == 1


def test_the_command_sends_later_what_is_missing(hub, capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    gone = subprocess.run(
        [*uploads.PROGRAM, str(exported()), "--to", "hf://policy"],
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
    )
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "hf://policy: " in gone.stderr
    assert "look at HF_ENDPOINT" in gone.stderr
    assert upload.main([str(exported()), "--to", "memory://place"]) == 0
    assert fsspec.filesystem("memory").cat("/place/lora_adapter/adapter.bin") == b"abc"
    assert upload.main(["nowhere", "--to", "memory://place"]) == 2
    assert upload.main([str(exported()), "--to", "nosuch://place"]) == 2
    told = capsys.readouterr().err
    assert "nowhere is no folder" in told
    assert "nosuch://place: Protocol not known: nosuch" in told


def test_an_upload_holds_up_nothing_and_what_comes_meanwhile_is_left_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    scripted(monkeypatch, WAITS)
    one, began = sending(Said(), upload_s3="all", s3_bucket="file:///store"), time.monotonic()
    for number in (1, 2, 3):
        one.exported(exported(number))
    assert time.monotonic() - began < 10.0
    assert sorted(path.name for path in one.reading) == ["000001", "000003"]
    Path("go").touch()
    one.finish(StopSignal())
    (sent, left) = one.rows()
    assert sent == ["uploaded", "file:///store/outputs/run/000003"]
    assert left[0] == "000002 not uploaded"
    assert left[1].endswith("runs/run/exports/000002 --to file:///store/outputs/run/000002")


@pytest.mark.parametrize("stopped", [False, True])
def test_the_end_of_a_run_waits_only_so_long(stopped, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(uploads, "STOPPED_S", 0.3)
    scripted(monkeypatch, "echo $$ > pid; exec sleep 60")
    one = sending(Said(), upload_s3="all", s3_bucket="file:///store", upload_timeout_s=60.0 if stopped else 0.5)
    one.exported(exported())
    until(lambda: Path("pid").exists() and bool(Path("pid").read_text(encoding="utf-8")))
    stop, began = StopSignal(timeout_s=20.0), time.monotonic()
    with stop, stop.hold():
        if stopped:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            one.finish(stop)
        except Stopped:
            assert stopped
        stop.number = None
    assert time.monotonic() - began < 30.0
    ((name, later),) = one.rows()
    assert name == "000001 not uploaded"
    assert later.endswith("runs/run/exports/000001 --to file:///store/outputs/run/000001")
    assert not Path("/proc", Path("pid").read_text(encoding="utf-8").strip()).exists()


def test_an_upload_goes_on_alone_when_its_run_is_killed_hard(tmp_path):
    started = f"Beside(['sh', '-c', {WAITS + 'touch sent'!r}], behind=False)"
    imports = "import time; from embodied.run.folder.beside.beside import Beside"
    code = f"{imports}; {started}; print('begun', flush=True); time.sleep(60)"
    run = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )  # fmt: skip
    assert run.stdout is not None
    with run.stdout:
        assert run.stdout.readline() == b"begun\n"
        run.kill()
        run.wait()
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "sent").exists())


def test_an_export_stays_until_it_is_sent(monkeypatch, tmp_path):
    """Its checkpoint is deleted meanwhile, and the next export is written beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exports, "PROGRAM", ("sh", "-c", 'mkdir -p "$5"; echo "$1" > "$5/file"', "sh"))
    scripted(monkeypatch, WAITS + 'cat "$1/file" >> sent')
    kept = CheckpointConfig(
        export_safetensors=True, upload_s3="all", s3_bucket="file:///store", upload_timeout_s=LONGEST_S
    )
    one = Exporter(Path("runs/run"), kept, Exportable(), Said())
    for number in (1, 2):
        checkpoint = Path("runs/run/checkpoints") / f"{number:06d}"
        checkpoint.mkdir(parents=True)
        one.completed(checkpoint)
        until(lambda out=Path("runs/run/exports") / checkpoint.name: out in one.uploads.reading)
        checkpoint.rmdir()
    Path("go").touch()
    one.finish(StopSignal())
    assert Path("sent").read_text(encoding="utf-8").splitlines() == [
        f"runs/run/checkpoints/00000{number}" for number in (1, 2)
    ]


def test_the_last_export_stays_although_the_next_one_fails(monkeypatch, tmp_path):
    """It is sent at the end, and its checkpoint may be gone by then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exports, "PROGRAM", ("sh", "-c", 'case $1 in *1) mkdir -p "$5";; *) exit 1;; esac', "sh"))
    scripted(monkeypatch, 'test -d "$1"')
    kept = CheckpointConfig(export_safetensors=True, upload_s3="final", s3_bucket="file:///store")
    one = Exporter(Path("runs/run"), kept, Exportable(), Said())
    for number in (1, 2):
        checkpoint = Path("runs/run/checkpoints") / f"{number:06d}"
        checkpoint.mkdir(parents=True)
        one.completed(checkpoint)
        until(lambda: not one._queue.goes_on())
        checkpoint.rmdir()
    one.finish(StopSignal())
    assert one.uploads.rows() == [["uploaded", "file:///store/outputs/run/000001"]]


def test_a_store_with_folders_gets_them_and_a_prefix_may_be_empty(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    class Strict(LocalFileSystem):
        """As over SSH: a file needs its folder."""

        protocol = "strict"

    fsspec.register_implementation("strict", Strict, clobber=True)
    assert upload.upload(exported(), f"strict://{tmp_path}/store") == f"strict://{tmp_path}/store"
    assert (tmp_path / "store/lora_adapter/adapter.bin").read_bytes() == b"abc"
    one = sending(Said(), upload_s3="all", s3_bucket="strict://place/", s3_prefix="")
    assert one._ways[0].place == "strict://place/run"


def test_a_hub_that_does_not_answer_is_given_up(hub):
    hub.silent = True
    script = "import sys; from embodied.tools import upload; upload.SILENT_S = 0.5; sys.exit(upload.main(sys.argv[1:]))"
    gone = subprocess.run(
        [sys.executable, "-c", script, str(exported()), "--to", "hf://policy"],
        capture_output=True, text=True, timeout=LONGEST_S - 10.0,
    encoding="utf-8")  # fmt: skip
    assert gone.returncode == 2
    assert "timed out" in gone.stderr


@pytest.mark.parametrize("place", ["abfs://container@account/folder", "sftp://me@host/folder", "file:///a:b@c"])
def test_a_name_in_an_address_is_no_password(place):
    check_uploads(CheckpointConfig(s3_bucket=place))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("upload_hf=true", "set runner.checkpoint.hf_repo_name=NAME"),
        ("upload_s3=all s3_bucket=b", "set runner.checkpoint.export_safetensors=true"),
        ("s3_bucket=s3://me:pw@b", "which would be written into files"),
        ("s3_bucket=s3://me:pw/pw@b", "which would be written into files"),
        ("s3_bucket=me:pw@b", "which would be written into files"),
    ],
)
def test_uploads_that_cannot_be_are_refused(keys, said):
    with pytest.raises(ConfigError) as refused:
        compose(["env=fake", "model=fake", *(f"runner.checkpoint.{key}" for key in keys.split())], "train",
                [str(ROOT / "tests/config")])  # fmt: skip
    assert said in str(refused.value)
    assert "pw" not in str(refused.value).replace("password", "")


def test_a_store_without_its_package_is_refused_before_the_first_iteration(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"pip install 'embodied-rl\[s3\]'"):
        sending(Said(), upload_s3=True, s3_bucket="bucket")
    with pytest.raises(ConfigError, match="fsspec knows no nosuch://"):
        sending(Said(), upload_s3=True, s3_bucket="nosuch://bucket")


SERVED = """
import boto3, subprocess, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0)
server.start()
import os
os.environ["AWS_ENDPOINT_URL"] = "http://%s:%s" % server.get_host_and_port()
store = boto3.client("s3")
store.create_bucket(Bucket="bucket")
for to in ("s3://bucket/outputs/run/000001", "s3://nowhere/run"):
    done = subprocess.run([sys.executable, "-m", "embodied.tools.upload", sys.argv[1], "--to", to], timeout=120)
    print("status", done.returncode, flush=True)
print(sorted(one["Key"] for one in store.list_objects_v2(Bucket="bucket")["Contents"]))
print(store.get_object(Bucket="bucket", Key="outputs/run/000001/model.safetensors")["Body"].read() == bytes(range(256)))
print([one["Name"] for one in store.list_buckets()["Buckets"]])
server.stop()
"""


def botocore_of(python: Path) -> str:
    """The version that s3fs takes; boto3 has the same numbers. Else pip tries one boto3 after the other."""
    script = "from importlib.metadata import version; print(version('botocore'))"
    return subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout.strip()


@pytest.mark.slow
def test_s3(monkeypatch, tmp_path):
    """Amazon's protocol, of a server of moto."""
    monkeypatch.chdir(tmp_path)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    subprocess.run([sys.executable, "-m", "venv", "environment"], check=True, timeout=300)
    python = tmp_path / "environment/bin/python"
    install = [python, "-m", "pip", "install", "-q"]
    for wanted in (lambda: extras["s3"], lambda: ["moto[s3,server]", f"boto3=={botocore_of(python)}"]):
        made = subprocess.run([*install, *wanted()], capture_output=True, timeout=600)
        if made.returncode != 0:
            pytest.skip(f"s3fs and moto cannot be installed here: {made.stderr.decode()[-300:]}")
    secret = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "very-secret-key", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [python, "-c", SERVED, str(exported())], capture_output=True, text=True, timeout=300,
        env={**os.environ, **secret, "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": str(ROOT)},
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, files, same, buckets = done.stdout.splitlines()
    assert files == str([f"outputs/run/000001/{name}" for name in sorted(FILES)])
    assert (same, buckets) == ("True", "['bucket']"), "no bucket is made"
    assert [line for line in done.stdout.splitlines() if line.startswith("status")] == ["status 0", "status 2"]
    assert "s3://nowhere/run: " in done.stderr
    assert "look at the bucket's name" in done.stderr
    assert "very-secret-key" not in done.stderr + done.stdout
