# SPDX-License-Identifier: MIT
# HARDEN, LDHARDEN: flags of builds without a sanitizer, as far as the compiler takes them.
# Hardening: level 3 of checked copies needs a compiler that knows sizes at run time.
takes     = $(shell echo | $(CC) $(1) -Werror -c -x c -o /dev/null - 2>/dev/null && echo '$(1)')
FORTIFY  := $(shell printf '%s\n' 'x=__has_builtin(__builtin_dynamic_object_size)' | \
            $(CC) -E - 2>/dev/null | grep -q x=1 && echo 3 || echo 2)
HARDEN   := $(if $(SAN),,$(call takes,-fstack-protector-strong) $(call takes,-fcf-protection) \
            $(call takes,-mbranch-protection=standard) \
            $(if $(filter -O1 -O2 -O3 -Os,$(CFLAGS)),-U_FORTIFY_SOURCE \
            -D_FORTIFY_SOURCE=$(FORTIFY)))
LDHARDEN := $(if $(SAN),,-Wl$(comma)-z$(comma)relro -Wl$(comma)-z$(comma)now)
