# SPDX-License-Identifier: MIT
# Included by the Makefile: whether CUDA is built and for which cards (NO_CUDA: why not), the flags
# of nvcc, the object files and their rule.

# CUDA=auto: for the cards of this machine; for all of them when somebody else may run the program
# (install, packages), or for CUDA_ARCH. A machine without a card that has nvcc builds none.
ALL_ARCH   := 80 89 90 120
CARD_NODES := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
CARD_QUERY := nvidia-smi --query-gpu=compute_cap --format=csv,noheader
CARD_ARCH  := $(if $(filter 0,$(CUDA)),,$(if $(CARD_NODES),$(or $(shell $(CARD_QUERY) 2>/dev/null \
              | grep -x '[0-9]*\.[0-9]*' | tr -d . | sort -u),$(if $(filter-out %/dxg, \
              $(CARD_NODES)),native))))
OLD_ARCH   := $(filter 30 32 35 37 50 52 53 60 61 62 70 72 75,$(CARD_ARCH))
FOR_OTHERS := $(PACKS)$(filter install,$(GOALS))
override CUDA_ARCH := $(or $(CUDA_ARCH:sm_%=%),$(if $(FOR_OTHERS),$(ALL_ARCH)), \
              $(filter-out $(OLD_ARCH),$(CARD_ARCH)),$(if $(filter 1,$(CUDA)),$(ALL_ARCH)))
ifeq ($(origin NVCC),undefined)
NVCC := $(or $(shell command -v nvcc),$(firstword $(wildcard /usr/local/cuda/bin/nvcc)))
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1: nvcc is neither in PATH nor in /usr/local/cuda/bin)
endif
ifneq ($(filter 0,$(CUDA)),)
NO_CUDA := switched off
else ifeq ($(NVCC),)
NO_CUDA := $(if $(CARD_ARCH),a graphics card is here$(comma) but no nvcc,no nvcc found); CPU only
else ifeq ($(CUDA_ARCH),)
NO_CUDA := no graphics card $(if $(OLD_ARCH),of compute capability 8.0 or above )here; CPU only \
           (CUDA=1 builds it)
endif
FOUND += $(if $(NO_CUDA),,CUDA)

# machine code for each of CUDA_ARCH that this nvcc knows (90a for 9.0), and PTX of compute_90 for
# those that it does not know and for whatever comes later; or native
NV_KNOWN := $(if $(NO_CUDA),,$(patsubst compute_%,%,$(if $(NVCC),$(shell $(NVCC) --list-gpu-arch))))
NV_NEW    = $(filter-out native $(NV_KNOWN),$(CUDA_ARCH))
NV_GEN    = $(foreach a,$(filter $(NV_KNOWN),$(CUDA_ARCH)), \
            -gencode arch=compute_$(a:90=90a)$(comma)code=sm_$(a:90=90a)) \
            $(if $(filter 90,$(CUDA_ARCH))$(NV_NEW),-gencode arch=compute_90$(comma)code=compute_90)
NV_HOST   = $(addprefix -Xcompiler ,-Wall -Wextra $(HARDEN) \
            $(addprefix -fsanitize=,$(subst $(comma), ,$(SAN))))
NV_ALL    = -std=c++17 -O3 -lineinfo $(if $(filter native,$(CUDA_ARCH)),-arch=native,$(NV_GEN)) \
            -I. $(DEFS) -DHAVE_SM90A=$(if $(filter 90,$(CUDA_ARCH)),1,0) $(filter -D%,$(CPPFLAGS)) \
            $(NV_HOST) $(if $(WERR),-Werror all-warnings) $(NVCCFLAGS)
CUDA_DIR  = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# the runtime is linked statically: the program starts on a machine without a driver and then finds
# no device
CUDA_LIBS = $(call has,CUDA,-L$(CUDA_DIR)/lib64 -lcudart_static -ldl -lrt -lstdc++)

# NAME_types.cu is built once for each group of block types: the groups compile side by side
CU_SRC   := $(sort $(shell find kernels/cuda -name '*.cu'))
GROUPS   := 1 2 3 4
CU_OBJ    = $(patsubst %.cu,$(BUILD)/%.o,$(filter-out %_types.cu,$(CU_SRC))) \
            $(foreach g,$(GROUPS),$(patsubst %.cu,$(BUILD)/%_$g.o,$(filter %_types.cu,$(CU_SRC))))

define nvcc_rule
$(BUILD)/%$(1).o: %.cu $(BUILD)/.flags
	$$(call say,NVCC,'$$(strip $$< $(2))')
	$$(Q)mkdir -p $$(@D) && $$(NVCC) $$(NV_ALL) $(2) -MMD -MP -MF $$(@:.o=.d) -c $$< -o $$@
endef
# the bytes that quantisers write are the CPU's, which contracts nothing
$(BUILD)/kernels/cuda/quant/%.o: NV_ALL += --fmad=false
$(eval $(call nvcc_rule))
$(foreach g,$(GROUPS),$(eval $(call nvcc_rule,_$g,-DTYPE_GROUP=$g)))
