"""Policies as programs: one decision as a graph of tensor operations, without the Python code that made it.

| file | knows |
|---|---|
| ``facts.py`` | ``program.json``: what a folder with a program says of it |
| ``int8.py`` | linear layers whose weights are held in 8 bits |
| ``write.py`` | how a module is traced and written as torch.export, ONNX or AOTInductor |
| ``archive.py`` | what a file of torch.export may hold before it is read |
| ``faster.py`` | what a traced graph can do without |
| ``run.py`` | how a written program is read and run |

All programs have the inputs and outputs of :data:`.facts.INPUTS` and :data:`.facts.OUTPUTS`.
"""
