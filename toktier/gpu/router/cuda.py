"""Devices of the CUDA driver, through PyCUDA, which is imported when one is opened and not before.

Invariant: an error of the driver, whatever class it has, becomes one `Failed` by its name; a context whose kernels
failed answers every later call with the same error, so it is given up as a whole (`toktier.gpu.router.worker`).
"""

from __future__ import annotations

import contextlib

from toktier.errors import UnusableFile
from toktier.gpu import fatbin
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import Device, Encoder, KernelFault
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.driver import driver_there
from toktier.gpu.tables import Tables
from toktier.gpu.workspace import Workspace
from toktier.reasons import Gpu

_WORDS: tuple[tuple[Gpu, tuple[str, ...]], ...] = (
    (Gpu.OUT_OF_MEMORY, ("out of memory", "out_of_memory", "memoryerror")),
    (
        Gpu.WRONG_ARCHITECTURE,
        ("no kernel image", "no_binary_for_gpu", "device kernel image is invalid", "ptx"),
    ),
    (Gpu.NO_DEVICE, ("no cuda-capable device", "no_device", "invalid device ordinal", "invalid_device")),
    (Gpu.NO_DRIVER, ("cuinit", "driver version is insufficient", "system_driver_mismatch")),
)
"""Words of the driver's error names and of PyCUDA's texts, lower case; the first that fits counts."""


def failure_of(error: BaseException) -> Failed:
    """What an error of PyCUDA, of a driver call or of the kernels means."""
    if isinstance(error, Failed):
        return error
    detail = str(error).partition("\n")[0][:200]
    if isinstance(error, KernelFault):
        return Failed(Gpu.KERNEL_FAULT, detail)
    if isinstance(error, UnusableFile):
        return Failed(Gpu.NO_KERNELS, detail)
    if isinstance(error, ImportError):
        return Failed(Gpu.NO_PYCUDA, detail)
    name = type(error).__name__
    text = f"{name} {detail}".lower()
    for reason, words in _WORDS:
        if any(word in text for word in words):
            return Failed(reason, detail)
    if isinstance(error, DriverError) or type(error).__module__.startswith("pycuda"):
        return Failed(Gpu.DEVICE_LOST, detail)
    return Failed(Gpu.INTERNAL_ERROR, name)


class CudaDevice:
    """One GPU, opened. See `toktier.gpu.router.devices.OpenDevice`."""

    def __init__(self, number: int) -> None:
        """Raises `Failed`."""
        if not driver_there():
            raise Failed(Gpu.NO_DRIVER)
        try:
            kernels = fatbin.load()
            self.device = Device(kernels, number)
        except Exception as error:
            raise failure_of(error) from error
        self.name = self.device.name
        self._workspace: Workspace | None = None
        """Of all encoders: only one thread is at work here."""

    def encoder(self, tables: Tables, room: int) -> Encoder:
        """``room``: the same each time."""
        if self._workspace is None:
            self._workspace = self.device.workspace(room)
        return Encoder(self.device, tables, workspace=self._workspace)

    def failure(self, error: BaseException) -> Failed:
        return failure_of(error)

    def close(self) -> None:
        if self._workspace is not None:
            with contextlib.suppress(Exception), self.device.current():  # of a context that is lost, nothing is freed
                self._workspace.close()
        with contextlib.suppress(Exception):
            self.device.close()
