/* SPDX-License-Identifier: MIT */
/* The transfer where the host reaches both tiers: reads land in the slots themselves, and what
 * moves between tiers is copied by the calling thread. See transfer.h for the contract. */
#ifndef GLM_STREAM_HOST_TRANSFER_H
#define GLM_STREAM_HOST_TRANSFER_H

#include "stream/loader/transfer.h"

/* NULL: no memory for the tables. */
struct transfer *host_transfer_open(const struct transfer_config *config);

#endif
