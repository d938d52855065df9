# Numbers of R packages for patients.csv: Rscript reference.R > reference.json
suppressMessages({
  library(rms); library(pROC); library(survival); library(riskRegression); library(metafor); library(prodlim)
})
d <- read.csv("patients.csv")
x <- qlogis(d$p)
at <- c(0.05, 0.2, 0.5, 0.8, 0.95)

large <- glm(outcome ~ offset(x), family = binomial, data = d, control = list(epsilon = 1e-14))
found <- val.prob(d$p, d$outcome, pl = FALSE)
spline <- lrm(outcome ~ rcs(x, 3), data = d, eps = 1e-12, tol = 1e-12)
a <- roc(d$outcome, d$p, quiet = TRUE, direction = "<")
b <- roc(d$outcome, d$q, quiet = TRUE, direction = "<")
paired <- roc.test(a, b, method = "delong", paired = TRUE)
cross <- table(d$group, d$outcome)
benefit <- function(t) mean(d$p >= t & d$outcome == 1) - mean(d$p >= t & d$outcome == 0) * t / (1 - t)

times <- c(6, 12, 20, 30)
km <- summary(survfit(Surv(time, event) ~ 1, data = d, conf.type = "log-log"), times = times)
halves <- d$risk > median(d$risk)
medians <- summary(survfit(Surv(time, event) ~ halves, data = d, conf.type = "log-log"))$table
score <- Score(
  list(model = 1 - matrix(d$survival, ncol = 1)), Surv(time, event) ~ 1, data = d, times = 20,
  metrics = c("brier", "auc"), cens.model = "km", se.fit = FALSE, null.model = FALSE
)
values <- c(0.8, 0.86, 0.74, 0.9)
variances <- 0.0018 * c(40, 30, 25, 50)^-1 * 30
p <- c(0.009, 0.012, 0.013, 0.024, 0.6, 0.035)

reference <- list(
  versions = c(list(R = as.character(getRversion())), sapply(
    c("rms", "pROC", "survival", "riskRegression", "metafor"), function(name) as.character(packageVersion(name)),
    simplify = FALSE
  )),
  calibration = list(
    intercept = unname(coef(large)), slope = unname(found["Slope"]), brier = unname(found["Brier"]), at = at,
    curve = unname(plogis(predict(spline, data.frame(x = qlogis(at)))))
  ),
  auc = list(
    p = as.numeric(auc(a)), q = as.numeric(auc(b)), interval_p = as.numeric(ci.auc(a, method = "delong"))[c(1, 3)],
    z = unname(paired$statistic), p_value = paired$p.value
  ),
  net_benefit = list(at = at, model = sapply(at, benefit)),
  proportions = list(
    counts = list(c(0, 9), c(7, 23), c(50, 50), c(44, 50)),
    intervals = lapply(list(c(0, 9), c(7, 23), c(50, 50), c(44, 50)), function(v) binom.test(v[1], v[2])$conf.int[1:2])
  ),
  shares = list(
    successes = as.numeric(cross[, "1"]), totals = as.numeric(rowSums(cross)),
    chi_square = unname(chisq.test(cross, correct = FALSE)$statistic),
    p = {set.seed(1); chisq.test(cross, simulate.p.value = TRUE, B = 1e6)$p.value}
  ),
  heterogeneity = {
    pooled <- rma(yi = values, vi = variances, method = "FE")
    list(values = values, variances = variances, q = pooled$QE, p = pooled$QEp)
  },
  adjusted = list(p = p, holm = p.adjust(p, "holm"), benjamini_hochberg = p.adjust(p, "BH")),
  survival = list(
    times = times, kaplan_meier = km$surv, concordance = unname(
      concordance(Surv(time, event) ~ risk, data = d, reverse = TRUE)$concordance
    ),
    log_rank = unname(survdiff(Surv(time, event) ~ halves, data = d)$chisq),
    medians = unname(medians[, "median"]),
    median_intervals = unname(medians[, c("0.95LCL", "0.95UCL")]),
    brier_at_20 = score$Brier$score$Brier, auc_at_20 = score$AUC$score$AUC
  )
)
cat(jsonlite::toJSON(reference, auto_unbox = TRUE, digits = NA, pretty = TRUE), "\n")
