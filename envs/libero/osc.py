"""One sub-step of robosuite's operational space control, compiled: robosuite's numbers to the last bit.

The formulas are those of ``OperationalSpaceController.run_controller`` and ``SingleArm.control`` of robosuite 1.4.0, in
their order. The matrices come from robosuite's own compiled functions. The last bits of a product depend on who
multiplies and on the memory order of what is multiplied. So robosuite's products by numpy go to numpy's BLAS here too
(:func:`numpy_gemv`), and arrays that robosuite has in column order have it here.

Imports numba and robosuite: only workers import this module.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from robosuite.utils.control_utils import nullspace_torques, opspace_matrices, orientation_error

JOINTS, FINGERS = 7, 2
ROWS, COLUMNS = 101, 102  # CBLAS: memory order of a matrix
_NOT_TRANSPOSED = 111
_NAMES = ("scipy_cblas_dgemv64_", "cblas_dgemv64_", "scipy_cblas_dgemv", "cblas_dgemv")


@functools.cache
def numpy_gemv() -> int | None:
    """Address of the function with which numpy multiplies a matrix by a vector; None if it is not found.

    What is found is tried: it must give numpy's own bits.
    """
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    address = next(filter(None, _addresses_in(core, _NAMES)), None)
    return address if address and _equals_numpy(address) else None


def _addresses_in(module: ModuleType | None, names: Sequence[str]) -> list[int | None]:
    """Addresses of functions in the shared library of a module, or in those that it links."""
    try:
        library = ctypes.CDLL(getattr(module, "__file__", None) or "")
    except OSError:
        return [None] * len(names)
    return [ctypes.cast(getattr(library, name, None) or 0, ctypes.c_void_p).value for name in names]


def _equals_numpy(address: int) -> bool:
    draw = np.random.default_rng(0).standard_normal
    for rows, columns in ((3, 45), (3, 51), (3, 3), (7, 6)):
        for order, arranged in ((ROWS, np.ascontiguousarray), (COLUMNS, np.asfortranarray)):
            for _ in range(10):
                matrix, vector, product = arranged(draw((rows, columns))), draw(columns), np.empty(rows)
                multiply(address, order, matrix, vector, product)
                if not np.array_equal(product, np.dot(matrix, vector)):
                    return False
    return True


def _call_gemv(
    typing: Any, address: Any, order: Any, rows: Any, columns: Any, lead: Any, a: Any, x: Any, y: Any
) -> Any:
    """Calls CBLAS ``dgemv`` at an address: y = a x. Integers are passed in 64 bits, which a 32 bit BLAS reads too."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, whole, real = ir.IntType(32), ir.IntType(64), ir.DoubleType()
        data = real.as_pointer()
        kinds = [number, number, whole, whole, real, data, whole, data, whole, real, data, whole]
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        matrix, vector, product = (
            builder.bitcast(make_array(kind)(context, builder, value).data, data)
            for kind, value in zip(signature.args[5:], args[5:], strict=True)
        )
        one = whole(1)
        order = builder.trunc(args[1], number)
        given = [order, number(_NOT_TRANSPOSED), args[2], args[3], real(1.0), matrix, args[4], vector, one]
        builder.call(function, [*given, real(0.0), product, one])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, a, x, y), codegen


_gemv: Any = intrinsic(_call_gemv)  # called without ``typing``


def mujoco_functions() -> tuple[int, int, int] | None:
    """Addresses of ``mj_step1``, ``mj_step2`` and ``mj_jacSite`` in the library that mujoco's Python package links."""
    import mujoco

    step1, step2, jacobian = _addresses_in(mujoco._functions, ("mj_step1", "mj_step2", "mj_jacSite"))
    return (step1, step2, jacobian) if step1 and step2 and jacobian else None


def _call_step(typing: Any, address: Any, model: Any, data: Any) -> Any:
    """Calls a function of MuJoCo's at an address with the addresses of a model and its data."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), [whole, whole]).as_pointer())
        builder.call(function, args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


def _call_jacobian(typing: Any, address: Any, model: Any, data: Any, site: Any, along: Any, around: Any) -> Any:
    """Calls ``mj_jacSite`` at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, rows = ir.IntType(64), ir.DoubleType().as_pointer()
        kinds = [whole, whole, rows, rows, ir.IntType(32)]
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        matrices = [
            builder.bitcast(make_array(kind)(context, builder, value).data, rows)
            for kind, value in zip(signature.args[4:], args[4:], strict=True)
        ]
        builder.call(function, [args[1], args[2], *matrices, builder.trunc(args[3], ir.IntType(32))])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, along, around), codegen


_step: Any = intrinsic(_call_step)
_jacobian: Any = intrinsic(_call_jacobian)


@numba.njit(cache=True)
def multiply(address: int, order: int, matrix: np.ndarray, vector: np.ndarray, product: np.ndarray) -> None:
    """Fills ``product`` with matrix · vector, by the BLAS function at ``address``."""
    rows, columns = matrix.shape
    _gemv(address, order, rows, columns, columns if order == ROWS else rows, matrix, vector, product)


class Arm(NamedTuple):
    """Arrays that the control reads and writes; MuJoCo's own where it has them."""

    gemv: int  # address that :func:`numpy_gemv` gives
    jacobian: np.ndarray  # float64 [6, nv] of the hand, translations first
    qpos: np.ndarray
    qvel: np.ndarray  # [nv]
    position: np.ndarray  # position of the hand, m [3]
    axes: np.ndarray  # orientation of the hand [3, 3]
    inertia: np.ndarray  # MuJoCo's sparse ``qM``
    bias: np.ndarray  # ``qfrc_bias`` [nv]
    ctrl: np.ndarray  # torques of the arm and targets of the fingers, both written
    goal: np.ndarray  # position that the hand is to reach, m [3]
    turned: np.ndarray  # the goal's orientation [3, 3]
    kp: np.ndarray  # stiffness, translations first [6]
    kd: np.ndarray  # damping [6]
    initial: np.ndarray  # posture that is kept where the hand leaves a choice, rad [7]
    limits: np.ndarray  # lowest and highest torques, Nm [2, 7]
    moved: np.ndarray  # change of the fingers' command in a sub-step [2]
    middle: np.ndarray  # middle of the fingers' range, m [2]
    half: np.ndarray  # half the range, m [2]
    qpos_at: np.ndarray  # int64 [7]: where the joints stand in ``qpos``,
    dofs: np.ndarray  # [7]: in ``qvel``,
    motors: np.ndarray  # [7]: in ``ctrl``,
    finger_motors: np.ndarray  # [2]: the fingers in ``ctrl``,
    fingers_at: np.ndarray  # [2]: the fingers in ``qpos``
    addresses: np.ndarray  # [7, 7]: the joints' entries in ``qM``; −1 where it is 0


def prepare() -> None:
    """Compiles the control, or loads it from numba's cache: on a robot's clock a first control step that does would be
    late."""
    real = {name: np.zeros(1) for name in Arm._fields}
    matrices = {name: np.zeros((1, 1)) for name in ("jacobian", "axes", "turned", "limits")}
    whole = {name: np.zeros(1, np.int64) for name in ("qpos_at", "dofs", "motors", "finger_motors", "fingers_at")}
    arm = Arm(**{**real, **matrices, **whole, "addresses": np.zeros((1, 1), np.int64), "gemv": 0})  # type: ignore[arg-type]
    control.compile((numba.typeof(arm), numba.typeof(np.zeros(1))))
    advance.compile(tuple(map(numba.typeof, (1, np.zeros(1, np.int64), arm, np.zeros(1), 1, np.zeros(1), np.zeros(1)))))


@numba.njit(cache=True, nogil=True)
def control(arm: Arm, fingers: np.ndarray) -> None:
    """Computes OSC_POSE: fills ``arm.ctrl`` with the arm's torques and the fingers' targets.

    Args:
        fingers: what the fingers are told, in [-1, 1] [2]; is moved on by a sub-step.
    """
    mass, full, along, around = _dynamics(arm)
    joint_pos, joint_vel = _joints(arm)
    force, torque = _forces(arm)
    wrench, torques = np.empty(6), np.empty(JOINTS)
    _, lambda_pos, lambda_ori, nullspace = opspace_matrices(mass, full, along, around)
    _gemv(arm.gemv, COLUMNS, 3, 3, 3, lambda_pos, force, wrench[:3])
    _gemv(arm.gemv, COLUMNS, 3, 3, 3, lambda_ori, torque, wrench[3:])
    _gemv(arm.gemv, ROWS, JOINTS, 6, 6, full.T, wrench, torques)
    posture = nullspace_torques(mass, nullspace, arm.initial, joint_pos, joint_vel)
    for j in range(JOINTS):
        total = torques[j] + arm.bias[arm.dofs[j]] + posture[j]
        arm.ctrl[arm.motors[j]] = _clip(total, arm.limits[0, j], arm.limits[1, j])
    _move_fingers(arm, fingers)


@numba.njit(cache=True)
def _dynamics(arm: Arm) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The joints' inertia [7, 7] and the hand's Jacobian [6, 7] with its halves [3, 7], in column order, as robosuite's
    selection by lists leaves them."""
    dofs, addresses = arm.dofs, arm.addresses
    mass, full = np.empty((JOINTS, JOINTS)).T, np.empty((JOINTS, 6)).T
    along, around = np.empty((JOINTS, 3)).T, np.empty((JOINTS, 3)).T
    for j in range(JOINTS):
        for i in range(3):
            along[i, j] = full[i, j] = arm.jacobian[i, dofs[j]]
            around[i, j] = full[3 + i, j] = arm.jacobian[3 + i, dofs[j]]
        for i in range(JOINTS):
            mass[i, j] = arm.inertia[addresses[i, j]] if addresses[i, j] >= 0 else 0.0
    return mass, full, along, around


@numba.njit(cache=True)
def _joints(arm: Arm) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities of the arm's joints."""
    position, velocity = np.empty(JOINTS), np.empty(JOINTS)
    for j in range(JOINTS):
        position[j], velocity[j] = arm.qpos[arm.qpos_at[j]], arm.qvel[arm.dofs[j]]
    return position, velocity


@numba.njit(cache=True)
def _forces(arm: Arm) -> tuple[np.ndarray, np.ndarray]:
    """Computes force [3] and torque [3] that pull the hand towards its goal."""
    kp, kd, nv = arm.kp, arm.kd, arm.qvel.shape[0]
    velocity, force, torque = np.empty(6), np.empty(3), np.empty(3)
    _gemv(arm.gemv, ROWS, 3, nv, nv, arm.jacobian[:3], arm.qvel, velocity[:3])
    _gemv(arm.gemv, ROWS, 3, nv, nv, arm.jacobian[3:], arm.qvel, velocity[3:])
    error = orientation_error(arm.turned, arm.axes)
    for i in range(3):
        force[i] = (arm.goal[i] - arm.position[i]) * kp[i] + -velocity[i] * kd[i]
        torque[i] = error[i] * kp[3 + i] + -velocity[3 + i] * kd[3 + i]
    return force, torque


@numba.njit(cache=True)
def _move_fingers(arm: Arm, fingers: np.ndarray) -> None:
    for i in range(FINGERS):
        fingers[i] = _clip(fingers[i] + arm.moved[i], -1.0, 1.0)
        arm.ctrl[arm.finger_motors[i]] = arm.middle[i] + arm.half[i] * fingers[i]


@numba.njit(cache=True, nogil=True)
def advance(
    substeps: int, places: np.ndarray, arm: Arm, fingers: np.ndarray, read: int, seen: np.ndarray,
    seen_fingers: np.ndarray,
) -> None:  # fmt: skip
    """Runs sub-steps: MuJoCo's first half of a step, :func:`control`, the second half.

    Args:
        places: addresses of :func:`mujoco_functions`, of the model and of its data; number of the hand's site.
        fingers: as :func:`control` takes them.
        read: the sub-step at which sensors are read; −1: none.
        seen: gets all positions [nq] before that one is integrated.
        seen_fingers: gets the fingers' positions [2] after that.
    """
    step1, step2, jacobian_of, model, data, site = places
    for substep in range(substeps):
        _step(step1, model, data)
        _jacobian(jacobian_of, model, data, site, arm.jacobian[:3], arm.jacobian[3:])
        control(arm, fingers)
        if substep == read:
            seen[:] = arm.qpos
        _step(step2, model, data)
        if substep == read:
            for finger in range(FINGERS):
                seen_fingers[finger] = arm.qpos[arm.fingers_at[finger]]


@numba.njit(cache=True)
def _clip(value: float, low: float, high: float) -> float:
    """Clips as ``numpy.clip`` does: NaN stays NaN."""
    if value < low:
        return low
    return high if value > high else value
