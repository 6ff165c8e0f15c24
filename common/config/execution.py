"""Settings of the execution: where a run is written, and which code computes it."""

from typing import Annotated, Literal

from pydantic import Field

from common.schema import KeyOf, NotSet, Schema


class ExecutionSettings(Schema):
    """Where the run is written, and how it is executed."""

    output_dir: str = Field("runs", min_length=1, description="folder that receives the run folder")
    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="start of the run folder's name: 1 to 64 letters, digits, dots, - or _",
    )
    messages: str = Field(
        "",
        description="kinds of messages from elsewhere that its sites are to answer, separated by "
        "commas: each by the name of an installed one, or package.module:NAME",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="of the run's log lines; json: one object per line"
    )
    report: bool = Field(True, description="write report.html and its plots when the run ends")
    workers: Annotated[int | None, NotSet(0)] = Field(
        None, ge=1, le=1024, description="simulation processes; left out: one per core"
    )
    cluster: str = Field(
        "",
        pattern=r"^(|auto|[A-Za-z0-9.-]{1,253}:[0-9]{1,5})$",
        description="Ray cluster whose nodes play the workers of a simulation, host:port or auto; "
        "empty: this machine alone",
    )
    engine: Annotated[str, KeyOf("client_app.training.engines:ENGINES")] = Field(
        "auto",
        description="auto: stacked on a GPU and compiled on a CPU where network and machine allow "
        "it, else batched, and the run's config.toml says which; "
        "batched: steps in C for dense networks where a C compiler is, sites evaluated together; "
        "compiled: for convolutions too, which needs a C compiler and is not bound to torch's "
        "rounding (max-pooling may decide a near tie otherwise); "
        "stacked: sites of a simulation side by side in one network, for a GPU, with rounding and "
        "dropout of its own; loop: autograd, one site at a time",
    )
