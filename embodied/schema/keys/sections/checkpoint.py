"""Section of checkpoints, their exports and uploads: ``runner.checkpoint``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.keys.base import Section

CheckpointPart = Literal["model", "optimizer", "extra"]


class CheckpointConfig(Section):
    max_keep: int = Field(
        3,
        ge=-1,
        description="How many checkpoints stay; older ones are deleted after a newer one is complete. -1 = all stay.",
    )
    save_contents: list[CheckpointPart] = Field(
        ["model", "optimizer", "extra"],
        description="Parts of a checkpoint: model = what is trained, with the counters of the run; optimizer = what "
        "Adam keeps, twice as much; extra = the states of random generators. Only with all three a run goes on to the "
        "same bits.",
    )
    load_contents: list[CheckpointPart] = Field(
        ["model", "optimizer", "extra"], description="Parts that a resumed run takes; the others begin anew."
    )
    save_mode: Literal["async", "sync"] | None = Field(
        None, description="async = async_save true, sync = false; null = what async_save says."
    )
    save_interval_epochs: int | None = Field(
        None,
        ge=0,
        description="Another name of runner.save_interval, because an iteration is an epoch; 0 and null = what "
        "runner.save_interval says.",
    )
    async_save: bool = Field(
        True,
        description="Write a checkpoint in the background while the run goes on, from a copy in host memory (of what "
        "is trained and the optimizer's state); false = the run waits until it is on the disk. Such a copy is kept of "
        "each iteration that is not saved, too, so that a stop in the midst of an update loses no earlier one.",
    )
    export_safetensors: bool = Field(
        False,
        description="Write each checkpoint for other programs, too: exports/ in the run folder has Hugging Face "
        "folders in fp32, as embodied.tools.export writes them, each as long as its checkpoint. A process beside the "
        "run does it, with another copy of the policy in host memory; of checkpoints that come while it works the "
        "newest is next, and the others are left out. A failure is said and stops nothing.",
    )
    upload_hf: bool | Literal["final", "all"] = Field(
        False,
        description="Send exports to the Hugging Face hub, beside the run: all, or final (true) = the last one alone. "
        "Needs export_safetensors=true. The token is that of HF_TOKEN, or of hf auth login. A failure stops nothing: "
        "the last table of the run lists each export that was not sent, with the command that sends it.",
    )
    hf_repo_name: str | None = Field(
        None,
        min_length=1,
        description="Repository on the hub, NAME or OWNER/NAME. If it is missing, it is made, and is private. Each "
        "export is a commit of it.",
    )
    upload_s3: bool | Literal["final", "all"] = Field(
        False,
        description="Send exports to S3 or to another store, beside the run: all, or final (true) = the last one "
        "alone. Needs export_safetensors=true, the extra 's3', and AWS's own variables.",
    )
    s3_bucket: str | None = Field(
        None,
        min_length=1,
        description="Bucket, or the address of another store that fsspec knows, e.g. gs://NAME or file:///FOLDER.",
    )
    s3_prefix: str = Field(
        "outputs", description="Begins the names in the bucket, before the run's name and the iteration."
    )
    upload_timeout_s: float = Field(
        600.0, gt=0, description="Seconds that the end of a run waits for uploads at most; after a stop signal, 5."
    )
