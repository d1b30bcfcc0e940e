"""A presenter hands a keyed peg over; the receiver seats it in a fixture before the takt ends.

Robots:      the ego receives and seats, the partner presents (`handover_scene`).
Task:        grasp the handle where it is presented, within a millimetre; align the peg with the
             keyed hole, 1 mm wide on each side; seat it softly (`handover_copies`). An episode
             terminates on success or where nobody holds the peg any more and it falls, and
             truncates when the takt or ``episode_length`` ends.
Action:      ego (7,): step of the own grip (3), turn of the own hand (3), world axes, in units of
             `GRIP_STEP` m and `TURN_STEP` rad per tick, then the gripper: above 0 closed. Presenter
             (6,): the same without the gripper; it lets go by itself 0.2 s after the ego grasped.
             Targets start from the present joint angles and the control ramps to them.
State:       ego (31,), each entry divided by its entry of `EGO_SCALE`: handle's point minus own
             grip (0:3), turn that aligns the hand with the peg (3:6), seat minus the peg's tip
             (6:9), turn that aligns the peg with the fixture (9:12), speeds of own grip and of the
             point (12:18), way and turn of the own hand to the seat as if it had grasped a straight
             peg (18:24), turn that sets the hand straight (24:27), whether ego and presenter hold
             the peg (27:29), contact force (29), time (30).
             Presenter (18,), divided by `PRESENTER_SCALE`: zone minus own grip (0:3), turn that
             sets the hand straight (3:6), receiver's grip minus handle's point (6:9), speeds of own
             and receiver's grip (9:15), whether receiver and presenter hold the peg (15:17), time.
Info:        ``success``, ``goal_distance`` (of the peg's tip to its seat, m), ``reached`` (the peg
             was seated, whatever the windows and forces), ``grasped``, ``depth`` and ``lateral``
             (m), ``angle_deg``, contact ``force`` and its maximum ``max_force`` (N), ``time`` (s).
Axes:        N = copies; turns are rotation vectors.
Units:       m, m/s, rad, N, s.
"""

from cadenza.envs.mujoco.handover_copies import Handing
from cadenza.envs.mujoco.two_arms import TwoArmEnv, VectorTwoArmEnv


class HandoverEnv(TwoArmEnv[Handing]):
    """One copy of the handover; observation, action, info and units in the module."""

    task = Handing


class VectorHandoverEnv(VectorTwoArmEnv[Handing]):
    """N copies of the handover on a pool of threads; every copy has the bytes of `HandoverEnv`."""

    task = Handing
