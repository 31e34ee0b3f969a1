"""Protocols that a part must meet to be plugged in. None is inherited from: matching names and types is enough.

To add a simulator, write one file like ``envs/_template.py``; to add a network, one like ``models/_template.py``.
``embodied.testing.check_env`` and ``check_policy`` drive every method below and say what does not fit.
"""

from __future__ import annotations

from embodied.protocols.env import Batched as Batched
from embodied.protocols.env import BatchEnv as BatchEnv
from embodied.protocols.env import BatchHasProgressFeatures as BatchHasProgressFeatures
from embodied.protocols.env import BuildsAhead as BuildsAhead
from embodied.protocols.env import Env as Env
from embodied.protocols.env import Expert as Expert
from embodied.protocols.env import HasProgressFeatures as HasProgressFeatures
from embodied.protocols.env import KnowsKinds as KnowsKinds
from embodied.protocols.env import KnowsPrompts as KnowsPrompts
from embodied.protocols.env import MistakenExpert as MistakenExpert
from embodied.protocols.env import MovesCameras as MovesCameras
from embodied.protocols.env import NeedsOfMachine as NeedsOfMachine
from embodied.protocols.env import Preloads as Preloads
from embodied.protocols.env import ReadsProblems as ReadsProblems
from embodied.protocols.env import Restorable as Restorable
from embodied.protocols.env import SafeStop as SafeStop
from embodied.protocols.env import SaysHowLong as SaysHowLong
from embodied.protocols.env import SaysMemory as SaysMemory
from embodied.protocols.env import SaysWhatItReads as SaysWhatItReads
from embodied.protocols.env import SaysWhatKeysMean as SaysWhatKeysMean
from embodied.protocols.env import TaskKinds as TaskKinds
from embodied.protocols.files import KnowsFiles as KnowsFiles
from embodied.protocols.judging import JudgesAtEnd as JudgesAtEnd
from embodied.protocols.later import AnswersLater as AnswersLater
from embodied.protocols.later import NamesWeights as NamesWeights
from embodied.protocols.model_for_env import ChoosesModel as ChoosesModel
from embodied.protocols.model_for_env import FitsEnv as FitsEnv
from embodied.protocols.model_for_env import ScalesState as ScalesState
from embodied.protocols.off_policy import BASE as BASE
from embodied.protocols.off_policy import CHUNK as CHUNK
from embodied.protocols.off_policy import DEMONSTRATED as DEMONSTRATED
from embodied.protocols.off_policy import ActorCritic as ActorCritic
from embodied.protocols.off_policy import Critics as Critics
from embodied.protocols.off_policy import ReadsDemonstrations as ReadsDemonstrations
from embodied.protocols.others import Cell as Cell
from embodied.protocols.others import Reward as Reward
from embodied.protocols.others import RewardModel as RewardModel
from embodied.protocols.others import ScoresInPasses as ScoresInPasses
from embodied.protocols.others import TakesTables as TakesTables
from embodied.protocols.others import TakesVideos as TakesVideos
from embodied.protocols.others import Tracker as Tracker
from embodied.protocols.policy import Clonable as Clonable
from embodied.protocols.policy import CountsFlops as CountsFlops
from embodied.protocols.policy import CountsTokens as CountsTokens
from embodied.protocols.policy import Decodes as Decodes
from embodied.protocols.policy import Decoding as Decoding
from embodied.protocols.policy import HasDemonstrationLoss as HasDemonstrationLoss
from embodied.protocols.policy import HasExtraState as HasExtraState
from embodied.protocols.policy import HasValueParts as HasValueParts
from embodied.protocols.policy import LaysOutRecords as LaysOutRecords
from embodied.protocols.policy import NamesSampler as NamesSampler
from embodied.protocols.policy import Policy as Policy
from embodied.protocols.policy import PreparesPictures as PreparesPictures
from embodied.protocols.policy import Shardable as Shardable
from embodied.protocols.policy import ShowsTokens as ShowsTokens
from embodied.protocols.policy import SplitsTexts as SplitsTexts
from embodied.protocols.policy import Team as Team
from embodied.protocols.policy import UsesStatistics as UsesStatistics
from embodied.protocols.serving import EXPORT_DTYPES as EXPORT_DTYPES
from embodied.protocols.serving import QUANTIZATIONS as QUANTIZATIONS
from embodied.protocols.serving import ROUNDINGS as ROUNDINGS
from embodied.protocols.serving import ContinuesChunks as ContinuesChunks
from embodied.protocols.serving import EngineFacts as EngineFacts
from embodied.protocols.serving import EngineText as EngineText
from embodied.protocols.serving import Examples as Examples
from embodied.protocols.serving import Exported as Exported
from embodied.protocols.serving import Exports as Exports
from embodied.protocols.serving import ServedByEngine as ServedByEngine
