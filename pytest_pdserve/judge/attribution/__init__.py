"""From what was measured to the layer that is at fault, or to none."""

from pytest_pdserve.judge.attribution.attribute import RULES, Attribution, attribute
from pytest_pdserve.judge.attribution.symptom import Kind, Layer, Pace, Symptom

__all__ = ["RULES", "Attribution", "Kind", "Layer", "Pace", "Symptom", "attribute"]
