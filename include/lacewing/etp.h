// Online learning with sparse weights: eligibility-trace primitives, D-RTRL and pp-prop. See docs/etp.md.
#pragma once

#include <lacewing/etp/cell.h>
#include <lacewing/etp/connectivity.h>
#include <lacewing/etp/executor.h>
#include <lacewing/etp/learner.h>
#include <lacewing/etp/pattern.h>
#include <lacewing/etp/primitive.h>
